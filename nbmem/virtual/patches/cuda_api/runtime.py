"""Device properties and free memory, as the CUDA runtime returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.hardware.machine import Machine
    from nbmem.virtual.tensors.host.pinned import Pinned


class DeviceProperties:
    """The result of get_device_properties() for a virtual card."""

    def __init__(self, gpu: VirtualGPU) -> None:
        card = gpu.card
        self.name = card.name
        self.major, self.minor = card.capability
        self.total_memory = card.total_bytes
        self.multi_processor_count = card.processors
        self.max_threads_per_multi_processor = card.multiprocessor.threads
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 48 << 10
        self.shared_memory_per_block_optin = card.multiprocessor.shared_bytes
        self.shared_memory_per_multiprocessor = card.multiprocessor.shared_bytes + 1024
        self.L2_cache_size = card.l2_bytes
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.gcnArchName = ""
        self.uuid = gpu.uuid
        self.pci_domain_id, self.pci_bus_id, self.pci_device_id = 0, gpu.pci_bus, 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


class _Error(int):
    """A status code of the CUDA runtime."""

    success = 0
    not_ready = 600

    @property
    def name(self) -> str:
        """CUDA's name of the status code."""
        return _ERRORS.get(int(self), ("cudaErrorUnknown", ""))[0]


_ERRORS = {
    0: ("cudaSuccess", "no error"),
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    600: ("cudaErrorNotReady", "device not ready"),
}
"""By number (cudaError_t of driver_types.h), the names and the texts of cudaGetErrorString."""


class Cudart:
    """CUDA runtime functions that programs reach by torch.cuda.cudart()."""

    def __init__(self, machine: Machine, pinned: Pinned) -> None:
        self._machine = machine
        self._pinned = pinned
        self.cudaError = _Error

    def cudaMemGetInfo(self, device: int = 0) -> tuple[int, int]:  # noqa: N802 - CUDA's name
        """Return free and total bytes."""
        gpu = self._machine.gpu_to_read(device)
        gpu.initialize()
        return max(0, gpu.free_bytes), gpu.card.total_bytes

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        """Return the description of a status code."""
        return _ERRORS.get(int(error), ("", "unknown error"))[1]

    def cudaHostRegister(self, pointer: int, size: int, _flags: int = 0) -> int:  # noqa: N802
        """Pin memory that the program has allocated itself."""
        self._pinned.register(pointer, size)
        return 0

    def cudaHostUnregister(self, pointer: int) -> int:  # noqa: N802
        """Unpin memory that cudaHostRegister has pinned."""
        self._pinned.unregister(pointer)
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cuda"):
            return lambda *_args, **_kwargs: 0
        raise AttributeError(name)
