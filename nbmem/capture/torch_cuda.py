"""Read torch's own CUDA memory counters without `memory_stats()`.

A raw reading takes 11 to 25 us; `memory_stats()` takes 100 to 500.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.warning_filter import pass_warnings

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceInfo


class Counters(NamedTuple):
    """One reading of a device's allocator counters.

    Attributes:
        t_ns: When, nanoseconds since the epoch.
        actions: How many entries the history would have now if it had never been cleared: the
            reading's exact position in it.
        allocated: Bytes in live blocks.
        active: Allocated plus blocks freed but still used by another stream.
        requested: Bytes that callers requested, of the active blocks.
        reserved: Bytes held from the driver.
        peak_allocated: Highest allocated bytes since torch's counter was last reset, by the user or
            for a cell (`torch_memory.peak_counters`). `users_peak` is the user's.
    """

    t_ns: int
    actions: int
    allocated: int
    active: int
    requested: int
    reserved: int
    peak_allocated: int


ORIGINAL = "nbmem_original"
"""Attribute of a function that stands in for one of torch's: torch's own."""

_met: list[ModuleType] = []
"""The torch of this process. It cannot be imported twice, so nbmem must not try if a test or a
reloader removes it from `sys.modules` for a while."""


def loaded_torch() -> ModuleType | None:
    """Return torch if the user has imported it, else None."""
    if _met:
        return _met[0]
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "_C"):  # else it is being imported right now
        _met.append(torch)
    return torch  # type: ignore[no-any-return]


def import_torch() -> ModuleType | None:
    """Import torch for a fully traced cell; None if not installed."""
    if not _met:
        try:
            with pass_warnings():  # those that the program's own import would raise
                import torch  # noqa: F401 - returned below
        except ImportError:
            return None
    return loaded_torch()


def initialized_torch() -> ModuleType | None:
    """Return torch once it has a CUDA context, else None.

    nbmem must never create a context.
    """
    torch: Any = loaded_torch()
    try:
        return torch if torch is not None and torch.cuda.is_initialized() else None
    except AttributeError:  # torch is being imported right now
        return None


def device_count() -> int:
    """Return how many GPUs torch uses or could use.

    Returns 0 before CUDA is initialized.
    """
    torch: Any = initialized_torch()
    return int(torch.cuda.device_count()) if torch is not None else 0


def device_info(
    index: int, by_nvml: tuple[int, int] | None, *, engine: str = "", wddm: bool = False
) -> DeviceInfo:
    """Describe a GPU that torch has initialized.

    Args:
        index: CUDA ordinal.
        by_nvml: The GPU's bytes, and those that the driver reserves; None to use torch's figure.
        engine: What a virtual GPU's figures come from; empty for a real one.
        wddm: Whether Windows manages the card's memory.
    """
    torch: Any = initialized_torch()
    properties = torch.cuda.get_device_properties(index)
    from nbmem.core.session.session import DeviceInfo  # imports numpy, which --help avoids

    total, driver = by_nvml or (int(properties.total_memory), 0)
    return DeviceInfo(
        index=index,
        name=str(properties.name),
        total_bytes=total,
        driver_bytes=driver,
        virtual=bool(engine),
        engine=engine,
        torch=str(torch.__version__),
        capability=(int(properties.major), int(properties.minor)),
        shared=is_integrated(index),
        wddm=wddm,
    )


def is_integrated(index: int) -> bool:
    """Return True if a GPU has only the host's memory.

    False before CUDA is initialized.

    torch has `cudaDevAttrIntegrated` in a card's properties. A GB10 has it set:
    https://github.com/ggml-org/llama.cpp/pull/17537. AMD's cards set it as well, but some have a
    part of the memory for themselves. They count as not integrated.
    """
    torch: Any = initialized_torch()
    if torch is None or getattr(getattr(torch, "version", None), "hip", None):
        return False
    return bool(getattr(torch.cuda.get_device_properties(index), "is_integrated", False))


def allocator_backend() -> str:
    """Return the name of the allocator backend that torch uses for CUDA.

    `native`, `cudaMallocAsync`, or `pluggable` (RMM's, vLLM's).

    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/cuda/memory.py (get_allocator_backend)
    """
    ask = getattr(getattr(loaded_torch(), "_C", None), "_cuda_getAllocatorBackend", None)
    return "native" if ask is None else str(ask())


def uses_allocator(allocator: Any) -> bool:
    """Return True if torch allocates from this pluggable allocator.

    Args:
        allocator: Its C++ object; None for none.
    """
    border = getattr(initialized_torch(), "_C", None)
    ask = getattr(border, "_cuda_getAllocator", None)
    return ask is not None and allocator is not None and ask() is allocator


def torch_with_history() -> ModuleType | None:
    """Return torch once its CUDA allocator can record a history.

    None before CUDA is initialized, and with any allocator but the native one.
    """
    torch = initialized_torch()
    return torch if torch is not None and allocator_backend() == "native" else None


def is_used(index: int) -> bool:
    """Return True if torch holds memory of a GPU.

    A pluggable allocator has no counters. With one, True if torch has a CUDA context there. The
    query creates no context.
    """
    torch: Any = initialized_torch()
    if torch is None:
        return False
    if allocator_backend() != "pluggable":
        counters = read_counters(index)
        return counters is not None and counters.reserved > 0
    there = getattr(torch._C, "_cuda_hasPrimaryContext", None)  # noqa: SLF001
    return there is not None and bool(there(index))


def torch_with_memory() -> ModuleType | None:
    """Return torch once its native allocator holds memory of a GPU.

    None before, and if it cannot record a history.

    CUDA may be initialized without any: in torch 2.13 an optimizer's step queries the GPU's stream,
    wherever its parameters are.
    """
    torch = torch_with_history()
    return torch if torch is not None and any(map(is_used, range(device_count()))) else None


def peaks_allocated() -> list[int]:
    """Return the highest allocated bytes of each GPU.

    They count since torch's counters were reset, by the user's code or by nbmem. Empty before CUDA
    is initialized, and with a pluggable allocator.
    """
    torch: Any = initialized_torch()
    if torch is None or allocator_backend() == "pluggable":
        return []
    read = torch._C._cuda_memoryStats  # noqa: SLF001
    stats = map(getattr(read, ORIGINAL, read), range(device_count()))
    return [one["allocated_bytes"]["all"]["peak"] for one in stats]


def is_higher(peaks: Sequence[int], before: Sequence[int], factor: float = 1) -> bool:
    """Return whether the peak of any GPU is higher than before.

    Args:
        peaks: The peaks now.
        before: Those of an earlier moment. torch may have used fewer GPUs then.
        factor: By how much it has to be higher.
    """
    grown = any(now > factor * then for now, then in zip(peaks, before, strict=False))
    return grown or any(peaks[len(before) :])


def read_counters(index: int) -> Counters | None:
    """Read a GPU's allocator counters, or return None.

    None before CUDA is initialized, and with a pluggable allocator, for which torch has no
    counters.
    """
    torch: Any = initialized_torch()
    if torch is None or allocator_backend() == "pluggable":
        return None
    read = torch._C._cuda_memoryStats  # noqa: SLF001
    stats = getattr(read, ORIGINAL, read)(index)
    blocks, allocated = stats["allocation"]["all"], stats["allocated_bytes"]["all"]
    return Counters(
        t_ns=CLOCK.time_ns(),
        actions=(
            blocks["allocated"]
            + blocks["freed"]
            + stats["active"]["all"]["freed"]
            + stats["num_device_alloc"]
            + stats["num_device_free"]
            + stats["num_ooms"]
        ),
        allocated=allocated["current"],
        active=stats["active_bytes"]["all"]["current"],
        requested=stats["requested_bytes"]["all"]["current"],
        reserved=stats["reserved_bytes"]["all"]["current"],
        peak_allocated=allocated["peak"],
    )


def users_peak(index: int) -> int | None:
    """Return a GPU's highest allocated bytes since the user's last reset.

    None as for `read_counters`.
    """
    torch: Any = initialized_torch()
    if torch is None or allocator_backend() == "pluggable":
        return None
    return int(torch._C._cuda_memoryStats(index)["allocated_bytes"]["all"]["peak"])  # noqa: SLF001


def card_bytes(index: int) -> tuple[int, int] | None:
    """Return (free, total) bytes of a GPU from cudaMemGetInfo, or None.

    None before CUDA is initialized, and if torch holds no memory. Only for machines without NVML.
    The call would create a context on a GPU that has none yet, so only GPUs in use are queried.
    """
    torch: Any = initialized_torch()
    if torch is None or not is_used(index):
        return None
    free, total = torch.cuda.mem_get_info(index)
    return int(free), int(total)
