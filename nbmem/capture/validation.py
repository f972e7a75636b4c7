"""What a driver's binding answered, checked at the border: what cannot be so goes no further."""

from __future__ import annotations

import operator
from typing import Any

from nbmem.core.errors import ProbeUnavailableError

_MOST = 2**63 - 1
"""NVML's own word for a figure that it does not have is 2**64 - 1."""


class ImpossibleReadingError(ProbeUnavailableError):
    """What was read cannot be so: this reading is unknown, the next one may be good."""


def whole_bytes(value: Any) -> int | None:
    """A whole number of bytes as any binding has it; None for what cannot be one."""
    try:
        count = operator.index(value)
    except Exception:  # noqa: BLE001 - texts, None, and whatever has an __index__ that raises
        return None
    return count if 0 <= count <= _MOST and not isinstance(value, bool) else None


def total_and_free(memory: Any) -> tuple[int, int]:
    """A card's bytes and those of them that are free.

    Raises:
        ImpossibleReadingError: They cannot be so.
    """
    total, free = whole_bytes(memory.total), whole_bytes(memory.free)
    if not total or free is None or free > total:
        raise ImpossibleReadingError(
            f"NVML says that of {shown(memory.total)} B of the card {shown(memory.free)} B are "
            "free, which cannot be: the process and device figures of nvidia-smi are unknown "
            "wherever it says so. torch's own counters still work. "
            "Check what nvidia-smi shows."
        )
    return total, free


def doubt(what: str, count: Any, used: int) -> str:
    """The sentence for a figure that is larger than all that is in use."""
    return (
        f"NVML says that {what} {shown(count)} B where {used} B of the card are in use, which "
        "cannot be: that figure is unknown wherever it says so. Check what nvidia-smi shows."
    )


def shown(value: Any) -> str:
    """An answer as it stands in a sentence: it may be anything."""
    try:
        return "".join(c if c.isprintable() else " " for c in str(value))[:40]
    except Exception:  # noqa: BLE001 - its str() is somebody's code
        return type(value).__name__


def text_of(value: Any) -> str:
    """NVML's older bindings answer with bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else "unknown"
