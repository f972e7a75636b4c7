"""Segments as address ranges, for undoing driver events one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nbmem.allocator.rounding import SMALL_SEGMENT
from nbmem.core.session.events import TAKES, Action, Segments


@dataclass(frozen=True, slots=True)
class AddressRange:
    """One segment, or one contiguous mapped part of a virtual range."""

    addr: int
    end: int
    stream: int
    small: bool
    expandable: bool
    pool: int


class AddressRanges:
    """Segments of a layout, updated backwards in time."""

    def __init__(self, segments: Segments) -> None:
        rows = zip(*(column.tolist() for _, column in segments.columns()), strict=True)
        self._at: dict[int, AddressRange] = {
            addr: AddressRange(addr, addr + size, stream, bool(small), bool(expandable), pool)
            for addr, size, stream, small, expandable, pool in rows
        }

    def take_back(self, action: int, addr: int, size: int, stream: int) -> None:
        """Undo one driver event.

        For memory that was released in the window the private pool is not recorded. It is assigned
        to the default pool.
        """
        end = addr + size
        small = size <= SMALL_SEGMENT
        if action in TAKES:
            for old in list(self._touching(addr, end)):
                del self._at[old.addr]
                if old.addr < addr:
                    self._at[old.addr] = replace(old, end=addr)
                if old.end > end:
                    self._at[end] = replace(old, addr=end)
        elif action == Action.SEGMENT_FREE:
            self._at[addr] = AddressRange(addr, end, stream, small, expandable=False, pool=0)
        else:
            self._join(AddressRange(addr, end, stream, small, expandable=True, pool=0))

    def _touching(self, addr: int, end: int) -> Iterator[AddressRange]:
        exact = self._at.get(addr)
        if exact is not None and exact.end == end:
            yield exact
        else:
            yield from (s for s in self._at.values() if s.addr < end and s.end > addr)

    def _join(self, new: AddressRange) -> None:
        """Add mapped pages, merged with adjacent ones of the same range."""
        for old in list(self._at.values()):
            if not old.expandable or old.stream != new.stream:
                continue
            if old.end == new.addr:
                new = replace(new, addr=old.addr, small=old.small, pool=old.pool)
                del self._at[old.addr]
            elif old.addr == new.end:
                new = replace(new, end=old.end, small=old.small, pool=old.pool)
                del self._at[old.addr]
        self._at[new.addr] = new

    def segments(self) -> Segments:
        """Return the current segments, sorted by address."""
        return Segments.from_rows(
            (s.addr, s.end - s.addr, s.stream, int(s.small), int(s.expandable), s.pool)
            for s in sorted(self._at.values(), key=lambda s: s.addr)
        )
