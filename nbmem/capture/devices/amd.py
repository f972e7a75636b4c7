"""AMD's cards in NVML's words: what amdsmi says of a card and of the processes on it.

torch for ROCm is `torch.cuda` with the same allocator, so only this source differs. amdsmi is part
of ROCm, and is asked for bytes only.
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
    """A card's bytes, as NVML's structure has them."""

    total: int
    used: int
    free: int


class OnCard(NamedTuple):
    """One process on a card, as NVML's structure has it."""

    pid: Any
    usedGpuMemory: Any  # noqa: N815 - its name


class Amdsmi:
    """The functions of NVML's package that nbmem calls, answered by amdsmi.

    Args:
        amdsmi: The package.
    """

    def __init__(self, amdsmi: Any) -> None:
        self._amdsmi = amdsmi

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name, as all below
        """Open the library."""
        self._amdsmi.amdsmi_init()

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Close it."""
        self._amdsmi.amdsmi_shut_down()

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """How many cards there are."""
        return len(self._amdsmi.amdsmi_get_processor_handles())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        """A card by amdsmi's order."""
        return self._amdsmi.amdsmi_get_processor_handles()[index]

    def handle_of(self, ordinal: int) -> Any:
        """A card by torch's ordinal: HIP's order is another one, which ROCm 6.4 and newer tell.

        Raises:
            ValueError: The card was chosen by a UUID that amdsmi says of none.
        """
        handles, wanted = self._amdsmi.amdsmi_get_processor_handles(), _visible(ordinal)
        ask = getattr(self._amdsmi, "amdsmi_get_gpu_enumeration_info", None)
        if ask is not None:
            for handle in handles:
                said = ask(handle)
                if wanted in (str(said.get("hip_id")), str(said.get("hip_uuid")).lower()):
                    return handle
        return handles[int(wanted)]

    def nvmlDeviceGetName(self, handle: Any) -> Any:  # noqa: N802
        """The name under which a card is sold."""
        return self._amdsmi.amdsmi_get_gpu_asic_info(handle)["market_name"]

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        """The driver's version, of the first card."""
        first = self.nvmlDeviceGetHandleByIndex(0)
        return self._amdsmi.amdsmi_get_gpu_driver_info(first)["driver_version"]

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> VramFigures:  # noqa: N802
        """A card's own memory; what it maps of the host's (GTT) is not of it."""
        kind = self._amdsmi.AmdSmiMemoryType.VRAM
        total = self._amdsmi.amdsmi_get_gpu_memory_total(handle, kind)
        used = self._amdsmi.amdsmi_get_gpu_memory_usage(handle, kind)
        return VramFigures(total, used, total - used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[OnCard]:  # noqa: N802
        """The processes on a card with what they hold of its own memory."""
        return [
            OnCard(one["pid"], one["memory_usage"]["vram_mem"])
            for one in self._amdsmi.amdsmi_get_gpu_process_list(handle)
        ]


def is_here() -> bool:
    """Whether the user's torch is one for AMD's cards."""
    version: Any = getattr(loaded_torch(), "version", None)
    return getattr(version, "hip", None) is not None


def load() -> Amdsmi:
    """The package, imported where no limit runs.

    Raises:
        ProbeUnavailableError: It is not installed, or not as a whole.
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
    """One of torch's cards as all of them are counted, or by its UUID where it was chosen by that.

    ROCr shows HIP some of the cards, numbered anew, and HIP chooses among those.
    https://rocm.docs.amd.com/en/docs-6.1.2/conceptual/gpu-isolation.html
    """
    card = str(ordinal)
    for names in (_HIPS, _ROCRS):
        listed = next(filter(None, map(_listed, names)), [])
        if card.isdecimal() and int(card) < len(listed):
            card = listed[int(card)]
    return card


def _listed(name: str) -> list[str]:
    """What an environment's variable lists."""
    return [part.strip().lower() for part in os.environ.get(name, "").split(",") if part.strip()]
