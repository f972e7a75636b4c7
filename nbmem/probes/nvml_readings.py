"""What NVML says of a card's memory and of the processes on it, whoever asks."""

from __future__ import annotations

from typing import Any

from nbmem.probes.checked import whole_bytes


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


def _listed(library: Any, ask: str, handle: Any) -> list[tuple[Any, int | None]]:
    try:
        running = getattr(library, ask)(handle)
        return [(process.pid, whole_bytes(process.usedGpuMemory)) for process in running]
    except Exception:  # noqa: BLE001 - MIG and some containers refuse; the totals stay
        return []
