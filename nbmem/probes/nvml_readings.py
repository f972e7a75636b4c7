"""What NVML says of a card's memory and of the processes on it, whoever asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.units import MIB
from nbmem.probes.checked import whole_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOR_EACH = 16 * MIB
"""The most that is nobody's for the card and for each process: what was seen, twice."""


def memory_of(library: Any, handle: Any) -> Any:
    """What a card has, as nvidia-smi says it since driver 510."""
    try:
        return library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2)
    except Exception:  # noqa: BLE001 - an older package, or an older driver
        return library.nvmlDeviceGetMemoryInfo(handle)


def processes_of(library: Any, handle: Any) -> dict[int, int | None]:
    """Bytes by PID, compute and graphics; None where the figure is hidden."""
    held: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for pid, size in _listed(library, f"nvmlDeviceGet{kind}RunningProcesses", handle):
            if isinstance(pid, int) and pid >= 0:
                known = [one for one in (held.get(pid), size) if one is not None]
                held[pid] = max(known, default=None)
    return held


def unowned(used: int, held: Mapping[int, int | None]) -> int:
    """Bytes in use that the driver counts for no process, while every process can be seen.

    On an H100 (driver 580.159) 3.25 MiB as soon as anybody is on the card, 5.6 MiB for each context
    and 2 MiB for 30 GiB of one's memory. Somebody whom a container hides has a context, which is
    more: then it is theirs.

    Args:
        used: Bytes in use, without those that the driver reserves.
        held: Bytes by PID, as `processes_of` reads them.

    Returns:
        0 where a figure is hidden, or where it may be somebody's.
    """
    known = [size for size in held.values() if size is not None]
    rest = used - sum(known)
    return rest if len(known) == len(held) and 0 < rest <= _FOR_EACH * (1 + len(held)) else 0


def _listed(library: Any, ask: str, handle: Any) -> list[tuple[Any, int | None]]:
    try:
        running = getattr(library, ask)(handle)
        return [(process.pid, whole_bytes(process.usedGpuMemory)) for process in running]
    except Exception:  # noqa: BLE001 - MIG and some containers refuse; the totals stay
        return []
