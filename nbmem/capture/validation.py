"""Validate what a GPU driver's Python binding returned.

Impossible values never leave this module.
"""

from __future__ import annotations

import operator
from typing import Any

from nbmem.core.errors import ProbeUnavailableError

_MAX_FIGURE = 2**63 - 1
"""NVML's value for an unavailable figure is 2**64 - 1."""


class ImpossibleReadingError(ProbeUnavailableError):
    """A driver reading that cannot be true; the next one may be valid."""


def whole_bytes(value: Any) -> int | None:
    """Return a value as a byte count; None if it cannot be one.

    Accepts the integer type of any binding. Refuses booleans, negative numbers and those from 2**63
    on.
    """
    try:
        count = operator.index(value)
    except Exception:  # noqa: BLE001 - texts, None, and an __index__ that raises
        return None
    return count if 0 <= count <= _MAX_FIGURE and not isinstance(value, bool) else None


def total_and_free(memory: Any) -> tuple[int, int]:
    """Return a GPU's total and free bytes.

    Raises:
        ImpossibleReadingError: The figures are no byte counts, or more is free than there is.
    """
    total, free = whole_bytes(memory.total), whole_bytes(memory.free)
    if not total or free is None or free > total:
        raise ImpossibleReadingError(
            f"NVML says that of {format_value(memory.total)} B of the card "
            f"{format_value(memory.free)} B are "
            "free, which cannot be. So its figures of the process and of the card are shown as "
            "unknown. torch's own counters still work. Check what nvidia-smi shows."
        )
    return total, free


def format_excess(what: str, count: Any, used: int) -> str:
    """Format the warning for a figure larger than all memory in use."""
    return (
        f"NVML says that {what} {format_value(count)} B where {used} B of the card are in use, "
        "which cannot be: that figure is shown as unknown. Check what nvidia-smi shows."
    )


def format_value(value: Any) -> str:
    """Format any value for a message, in at most 40 characters.

    Returns the type's name if `str()` raises.
    """
    try:
        return "".join(c if c.isprintable() else " " for c in str(value))[:40]
    except Exception:  # noqa: BLE001 - its str() may be any code
        return type(value).__name__


def text_of(value: Any) -> str:
    """Return a text from NVML, decoding the bytes of older bindings.

    `unknown` for anything else.
    """
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else "unknown"
