"""The host's memory of this process."""

from __future__ import annotations


def resident_bytes() -> int | None:
    """Bytes of this process in the host's memory; None where psutil cannot say."""
    try:
        import psutil

        return int(psutil.Process().memory_info().rss)
    except Exception:  # noqa: BLE001 - a missing or refused reading is a None, not a fault
        return None


def process_name(pid: int) -> str:
    """Name of a process for a person; its number where it is not visible from here."""
    try:
        import psutil

        return f"{psutil.Process(pid).name()} ({pid})"
    except Exception:  # noqa: BLE001 - another user's process or another container's
        return f"process {pid}"
