"""Accelerators besides NVIDIA's and AMD's, by torch's own counters.

CUDA devices are here, too, if torch uses another allocator than its native one.

Names are those of torch 2.13.

Their allocators round and hold temporaries, which belong to no observed tensor. Counted bytes
beyond the tensors are `unknown`; held bytes beyond those are cache.

`OtherAllocator` is a CUDA device where torch uses another allocator than its native one, whose
memory has no history. `backend:cudaMallocAsync` allocates from CUDA's default pool, and torch's
counters are that pool's figures. A `CUDAPluggableAllocator` counts nothing; if it is RMM's, RMM's
own figures replace the counters. The whole card is read as for any allocator
(capture/record/card_sampler.py).
https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDAMallocAsyncAllocator.cpp
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/cuda/CUDAPluggableAllocator.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbmem.capture import torch_cuda
from nbmem.capture.devices import Device, DeviceReading
from nbmem.capture.devices.host import Host
from nbmem.capture.frameworks import rmm
from nbmem.core.runtime.interrupts import reraise_if_from_signal

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceInfo


class OtherAllocator:
    """A CUDA GPU as a `Device`, without an allocator history.

    Its live tensors are the observed ones; further bytes are only counted.
    """

    kind = "cuda"

    @property
    def missing(self) -> str:
        """The limits of a recording with this allocator, and its backend."""
        return (
            "torch takes its memory from another allocator here "
            f"({torch_cuda.allocator_backend()}) and keeps no "
            "history of it: what lived was looked at where phases begin and end, and peaks are "
            "those of these moments. What the allocator counts beyond the tensors that were seen "
            "is unknown or cache; "
            f"{_WHAT_IS_COUNTED[torch_cuda.allocator_backend() == 'pluggable']}."
        )

    def in_use(self, _torch: Any) -> bool:
        """Return True if CUDA is initialized with another allocator."""
        return (
            torch_cuda.initialized_torch() is not None
            and torch_cuda.allocator_backend() != "native"
        )

    def count(self, _torch: Any) -> int:
        """Return the number of GPUs that torch uses or could use."""
        return torch_cuda.device_count()

    def read(self, _torch: Any, index: int, *, whole: bool) -> DeviceReading:  # noqa: ARG002 - all quick
        """Read the allocator's counters, as far as any are kept."""
        counters = torch_cuda.read_counters(index)
        if counters is not None:
            return DeviceReading(counters.allocated, counters.reserved)
        return DeviceReading(*(rmm.torch_bytes(index) or ()))

    def info(self, _torch: Any, index: int) -> DeviceInfo:
        """Return the name, bytes and allocator backend of a GPU."""
        return replace(
            torch_cuda.device_info(index, None),
            allocator=torch_cuda.allocator_backend(),
        )


_WHAT_IS_COUNTED = (
    "a block that another stream still uses counts as in use",
    "one that counts nothing has none of either",
)


_MISSING = (
    "torch keeps no history of {}'s memory that nbmem can read. It looked at the tensors and the "
    "counters where phases begin and end, so peaks are those of these moments. Temporaries and "
    "rounding are unknown."
)
_SILENT = " The driver does not say what is in use, so what other programs hold is counted as free."
_OWN_PROBES = frozenset(("cuda", "xpu", "mps"))


class _MayLackUsedBytes:
    """An accelerator whose driver may not report the bytes in use.

    The driver of Intel's integrated GPUs raises.

    https://github.com/pytorch/pytorch/issues/194576
    """

    _label = "this accelerator"
    _silent = False

    @property
    def missing(self) -> str:
        """The limits of a recording of the accelerator."""
        return _MISSING.format(self._label) + (_SILENT if self._silent else "")

    def _used(self, ask: Callable[[int], tuple[int, int]], index: int) -> int | None:
        """Return bytes in use by all processes; None if not reported."""
        try:
            free, total = ask(index)
        except Exception as err:  # noqa: BLE001 - each backend has its own
            reraise_if_from_signal(err)
            self._silent = True
            return None
        return max(0, int(total) - int(free))


class Xpu(_MayLackUsedBytes):
    """Intel's GPUs: a caching allocator with the statistics of CUDA's.

    Torch 2.13 can also write a history of them (`torch.xpu.memory._record_memory_history`). It is
    not read, because there was no such GPU to test it on.
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/xpu/memory.py
    """

    kind = "xpu"
    _label = "an Intel GPU"

    def in_use(self, torch: Any) -> bool:
        """Return True if torch.xpu is initialized."""
        return hasattr(torch, "xpu") and bool(torch.xpu.is_initialized())

    def count(self, torch: Any) -> int:
        """Return the number of Intel GPUs."""
        return int(torch.xpu.device_count())

    def read(self, torch: Any, index: int, *, whole: bool) -> DeviceReading:
        """Read the allocator's counters.

        With `whole`, also read the bytes of the GPU that all processes use.
        """
        stats = torch.xpu.memory_stats_as_nested_dict(index)
        used = self._used(torch.xpu.mem_get_info, index) if whole else None
        return DeviceReading(
            _current(stats, "allocated_bytes"), _current(stats, "reserved_bytes"), used
        )

    def info(self, torch: Any, index: int) -> DeviceInfo:
        """Return the name and bytes of a GPU."""
        properties = torch.xpu.get_device_properties(index)
        return _info(torch, self.kind, index, str(properties.name), int(properties.total_memory))


class Mps:
    """Apple's GPUs, whose memory is the host's.

    Metal counts for this process the live tensors, the allocator's cache and MPSGraph's memory. The
    latter two are not distinguished, so they share one line.
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/mps/__init__.py
    """

    kind = "mps"
    missing = _MISSING.format("Apple's GPU")

    def in_use(self, torch: Any) -> bool:
        """Return True if any tensor lives on the GPU.

        No other sign shows that its allocator is in use.
        """
        mps = getattr(torch, "mps", None)
        return bool(mps is not None and mps.is_available() and mps.current_allocated_memory())

    def count(self, _torch: Any) -> int:
        """Return 1: Metal's default device."""
        return 1

    def read(self, torch: Any, _index: int, *, whole: bool) -> DeviceReading:  # noqa: ARG002 - all quick
        """Read the live tensors, and what Metal counts for this process."""
        driver = int(torch.mps.driver_allocated_memory())
        return DeviceReading(int(torch.mps.current_allocated_memory()), None, driver, driver)

    def info(self, torch: Any, index: int) -> DeviceInfo:
        """Return the GPU's name and size.

        The size is the working set that Metal recommends not to exceed.
        """
        return _info(torch, self.kind, index, "Apple GPU", int(torch.mps.recommended_max_memory()))


class Accelerator(_MayLackUsedBytes):
    """Any other accelerator that torch.accelerator knows (Ascend, MTIA).

    Its memory API is that of torch 2.9.

    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/accelerator/memory.py
    """

    kind = ""

    def in_use(self, torch: Any) -> bool:
        """Return True if the allocator of the accelerator is initialized."""
        if not hasattr(getattr(torch, "accelerator", None), "memory_stats"):
            return False
        current = torch.accelerator.current_accelerator()
        if current is None or current.type in _OWN_PROBES:
            return False
        self.kind = current.type
        return bool(torch._C._accelerator_isAllocatorInitialized())  # noqa: SLF001 - no other sign

    def count(self, torch: Any) -> int:
        """Return the number of accelerators."""
        return int(torch.accelerator.device_count())

    def read(self, torch: Any, index: int, *, whole: bool) -> DeviceReading:
        """Read the allocator's counters.

        With `whole`, also read the bytes that all processes use.
        """
        stats = torch.accelerator.memory_stats(index)
        used = self._used(torch.accelerator.get_memory_info, index) if whole else None
        return DeviceReading(
            stats.get("allocated_bytes.all.current"), stats.get("reserved_bytes.all.current"), used
        )

    def info(self, torch: Any, index: int) -> DeviceInfo:
        """Return the kind and bytes of an accelerator."""
        _, total = torch.accelerator.get_memory_info(index)
        return _info(torch, self.kind, index, self.kind.upper(), int(total))


ACCELERATORS: tuple[Device, ...] = (OtherAllocator(), Xpu(), Mps(), Accelerator())


def accelerator_in_use(torch: Any) -> Device | None:
    """Return the accelerator in use; None if there is none of these.

    It is in use once the user's code has initialized it. A CUDA GPU counts if its allocator is not
    torch's native one.
    """
    return next((device for device in ACCELERATORS if device.in_use(torch)), None)


def device_without_history(torch: Any) -> Device:
    """Return the accelerator in use, else the host: both lack a history."""
    return accelerator_in_use(torch) or Host()


def _current(stats: Mapping[str, Any], name: str) -> int | None:
    """Return a counter of nested stats; None before initialization."""
    value = stats.get(name, {}).get("all", {}).get("current")
    return None if value is None else int(value)


def _info(torch: Any, kind: str, index: int, name: str, total: int) -> DeviceInfo:
    from nbmem.core.session.session import DeviceInfo

    return DeviceInfo(
        index=index,
        name=name,
        total_bytes=total,
        virtual=False,
        torch=str(torch.__version__),
        kind=kind,
    )
