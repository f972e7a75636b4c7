"""Format and parse byte counts, with binary units everywhere."""

from __future__ import annotations

import re

from nbmem.core.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_HALF = 0.05
"""Half of the last digit: an amount that would be written as 1,024.0 is 1 of the next unit."""
_BINARY = {"KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": GIB << 10}
_DECIMAL = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = {"": 1, "B": 1, **_BINARY, **{unit[0]: size for unit, size in _BINARY.items()}, **_DECIMAL}
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def format_bytes(count: int | None, *, signed: bool = False) -> str:
    """Format a byte count with its unit: B, KiB, MiB or GiB (1024).

    Every view formats every amount with this function, and labextension/src/format.ts does
    likewise. So no two views write one amount differently, and a nonzero amount is never written as
    0.

    Args:
        count: Bytes; None if unknown.
        signed: Write a plus sign before a positive count (for a change).
    """
    if count is None:
        return "unknown"
    sign = "-" if count < 0 else "+" if signed and count > 0 else ""
    size = abs(count)
    if size < KIB:
        return f"{sign}{size} B"
    if size < MIB - _HALF * KIB:
        return f"{sign}{size / KIB:,.1f} KiB"
    if size < GIB - _HALF * MIB:
        return f"{sign}{size / MIB:,.1f} MiB"
    return f"{sign}{size / GIB:,.2f} GiB"


def format_peak(count: int, *, exact: bool) -> str:
    """Format a peak: `697.1 MiB`, or `≥ 353.1 MiB` where more is possible.

    Every view formats the peak of a cell with this function, and labextension/src/format.ts does
    likewise.

    Args:
        count: Bytes.
        exact: Whether they were counted; else they are the highest reading.
    """
    return format_bytes(count) if exact else f"≥ {format_bytes(count)}"


def format_range(low: int, high: int) -> str:
    """Format a range of byte counts, or one figure if both look alike."""
    first, last = format_bytes(low), format_bytes(high)
    if first == last:
        return last
    return f"{first} to {last}" if low else f"up to {last}"


def round_up(value: int, unit: int) -> int:
    """Return the least multiple of `unit` that is not smaller than `value`."""
    return -(-value // unit) * unit


def parse_bytes(text: str) -> int:
    """Parse a byte count such as `20GiB`, `20 GB` or `1048576`.

    KiB, MiB, GiB, TiB and their first letters are powers of 1024; KB, MB, GB, TB are powers of
    1000, as on the box of a card.

    Raises:
        UsageError: The text is not a number with one of these units.
    """
    match = _BYTES.fullmatch(text)
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(
            f"{text!r} is not an amount of memory. "
            "Write a number and a unit, for example 512MiB or 20GiB (1024-based), or 20GB (1000)."
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_ms(duration_ns: int) -> str:
    """Format a duration in ms, or in s from one second on."""
    ms = duration_ns / 1e6
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"
