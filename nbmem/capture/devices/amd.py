"""Provide NVML's functions for AMD GPUs through amdsmi.

torch for ROCm is `torch.cuda` with the same allocator, so only this source differs. amdsmi is part
of ROCm, and is read for bytes only.
https://github.com/ROCm/amdsmi/blob/rocm-7.0.2/py-interface/amdsmi_interface.py
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.runtime.fault_isolation import error_of

_HIPS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_ROCRS = ("ROCR_VISIBLE_DEVICES",)


class VramFigures(NamedTuple):
    """A GPU's bytes, with the fields of NVML's structure."""

    total: int
    used: int
    free: int


class AmdProcess(NamedTuple):
    """A process on a GPU, with the fields of NVML's structure."""

    pid: Any
    usedGpuMemory: Any  # noqa: N815 - NVML's field name


class Amdsmi:
    """The NVML functions that nbmem calls, implemented with amdsmi."""

    def __init__(self, amdsmi: Any) -> None:
        self._amdsmi = amdsmi

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name, as all below
        """Open the library."""
        self._amdsmi.amdsmi_init()

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Close the library."""
        self._amdsmi.amdsmi_shut_down()

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Return the number of GPUs."""
        return len(self._amdsmi.amdsmi_get_processor_handles())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        """Return a GPU's handle by its index in amdsmi's order."""
        return self._amdsmi.amdsmi_get_processor_handles()[index]

    def handle_of(self, ordinal: int) -> Any:
        """Return a GPU's handle by torch's ordinal.

        HIP numbers GPUs in another order than amdsmi. ROCm 6.4 and newer report HIP's numbers;
        without them amdsmi's order is used.

        Raises:
            ValueError: The card was chosen by a UUID that amdsmi reports for no GPU.
        """
        handles, wanted = self._amdsmi.amdsmi_get_processor_handles(), _visible(ordinal)
        ask = getattr(self._amdsmi, "amdsmi_get_gpu_enumeration_info", None)
        if ask is not None:
            for handle in handles:
                identifiers = ask(handle)
                if wanted in (
                    str(identifiers.get("hip_id")),
                    str(identifiers.get("hip_uuid")).lower(),
                ):
                    return handle
        return handles[int(wanted)]

    def nvmlDeviceGetName(self, handle: Any) -> Any:  # noqa: N802
        """Return a GPU's market name."""
        return self._amdsmi.amdsmi_get_gpu_asic_info(handle)["market_name"]

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        """Return the driver version of the first GPU."""
        first = self.nvmlDeviceGetHandleByIndex(0)
        return self._amdsmi.amdsmi_get_gpu_driver_info(first)["driver_version"]

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> VramFigures:  # noqa: N802
        """Return a GPU's VRAM, without host memory that it maps (GTT)."""
        kind = self._amdsmi.AmdSmiMemoryType.VRAM
        total = self._amdsmi.amdsmi_get_gpu_memory_total(handle, kind)
        used = self._amdsmi.amdsmi_get_gpu_memory_usage(handle, kind)
        return VramFigures(total, used, total - used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[AmdProcess]:  # noqa: N802
        """List the processes on a GPU with the VRAM that each holds."""
        return [
            AmdProcess(one["pid"], one["memory_usage"]["vram_mem"])
            for one in self._amdsmi.amdsmi_get_gpu_process_list(handle)
        ]


def is_rocm() -> bool:
    """Return True if the loaded torch is built for ROCm."""
    version: Any = getattr(loaded_torch(), "version", None)
    return getattr(version, "hip", None) is not None


def load() -> Amdsmi:
    """Import amdsmi and wrap it in NVML's functions.

    Call this outside any time limit.

    Raises:
        ProbeUnavailableError: It is not installed, or only in part.
    """
    try:
        import amdsmi
    except Exception as err:  # without ROCm's library it raises anything
        raise ProbeUnavailableError(
            f"The package amdsmi cannot be imported ({error_of(err)}), so the process and device "
            "figures of amd-smi are missing; torch's own counters still work. It is part of ROCm: "
            "install the one of your ROCm's version to have them."
        ) from err
    return Amdsmi(amdsmi)


def _visible(ordinal: int) -> str:
    """Map torch's ordinal to a GPU's unfiltered index, or to its UUID.

    The UUID is returned if an environment variable selects the GPU by it.

    ROCr exposes some of the cards to HIP, renumbered, and HIP selects among those.
    https://rocm.docs.amd.com/en/docs-6.1.2/conceptual/gpu-isolation.html
    """
    card = str(ordinal)
    for names in (_HIPS, _ROCRS):
        listed = next(filter(None, map(_listed, names)), [])
        if card.isdecimal() and int(card) < len(listed):
            card = listed[int(card)]
    return card


def _listed(name: str) -> list[str]:
    """Split the comma-separated list of an environment variable."""
    return [part.strip().lower() for part in os.environ.get(name, "").split(",") if part.strip()]
