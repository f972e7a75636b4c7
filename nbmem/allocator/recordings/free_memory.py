"""Free pieces, segments and mapped pages during a reconstruction."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.rounding import SMALL_SEGMENT
from nbmem.core.session.events import Action, BlockState, Events, Layout

if TYPE_CHECKING:
    from nbmem.allocator.settings import AllocatorSettings
    from nbmem.core.arrays import Ints, Mask

_MAX_SEARCHES = 2000
"""Contradictions that are searched for a cause; each search reads every piece."""


class FreeMemory:
    """State of a reconstruction, with repairs for contradictory events.

    Attributes:
        size_at: Bytes of each free piece, by its start.
        start_at: Start of each free piece, by its end.
        segments: Bytes of each cudaMalloc segment, by its start: pieces do not merge across it.
        live: Index of the allocation at an address.
        orphans: Allocations that lie in no known segment.
        whole_changes: (event, bytes) by which wholly free segments changed.
        page_changes: (event, bytes) by which whole free pages of virtual ranges changed.
        unknown_frees: Frees of addresses that were not allocated.
        tangled: Events that were left out, since free pieces overlapped.
        whole_at_start: Bytes of wholly free segments before the first event.
        pages_at_start: Bytes of whole free pages before it.
    """

    def __init__(self, start: Layout, settings: AllocatorSettings) -> None:
        free = start.blocks[start.blocks.state == BlockState.INACTIVE]
        pieces = list(zip(free.addr.tolist(), free.size.tolist(), strict=True))
        self.size_at: dict[int, int] = dict(pieces)
        self.start_at: dict[int, int] = {addr + size: addr for addr, size in pieces}
        plain = start.segments[start.segments.expandable == 0]
        self.segments: dict[int, int] = dict(
            zip(plain.addr.tolist(), plain.size.tolist(), strict=True)
        )
        self._starts = sorted(self.segments)
        self.live: dict[int, int] = {}
        self.orphans: set[int] = set()
        self.whole_changes: list[tuple[int, int]] = []
        self.page_changes: list[tuple[int, int]] = []
        self.unknown_frees = 0
        self.tangled = 0
        self._granule = settings.large_segment_size
        self._range_starts: list[int] = []
        self._ranges: dict[int, list[int]] = {}  # start -> [end, granule]
        for row in range(len(start.segments)):
            if start.segments.expandable[row]:
                addr, size = int(start.segments.addr[row]), int(start.segments.size[row])
                self._extend_range(addr, size, small=bool(start.segments.small[row]))
        self.whole_at_start = sum(n for addr, n in pieces if self.segments.get(addr) == n)
        self.pages_at_start = sum(self._pages(addr, size) for addr, size in pieces)
        self._resized = self._overlapping = self._homeless = self._bad_segments = 0
        self._searches = 0

    def track(self, addrs: list[int], blocks: list[int], freed: list[int], died: list[int]) -> None:
        """Register the allocations that were live before the first event.

        The lists are shared, and the caller appends to them.
        """
        self.live.update({addr: index for index, addr in enumerate(addrs)})
        self._blocks, self._freed, self._died = blocks, freed, died

    def has_ranges(self, events: Events) -> bool:
        """Return whether expandable segments occur at all.

        Without them, no pages need to be counted.
        """
        return bool(self._ranges) or bool((events.action == Action.SEGMENT_MAP).any())

    def in_ranges(self, addrs: Ints) -> Mask:
        """Return a mask of the addresses that lie in a virtual range."""
        if not self._ranges:
            return np.zeros(len(addrs), np.bool_)
        ends = np.array([self._ranges[start][0] for start in self._range_starts], np.int64)
        at = np.searchsorted(self._range_starts, addrs, "right") - 1
        return np.asarray((at >= 0) & (addrs < ends[at]), np.bool_)

    def notes(self) -> tuple[str, ...]:
        """List the contradictions in the recording, a sentence for each kind."""
        met = (
            (self._resized, "blocks had another size than the settings give: were they changed?"),
            (self._overlapping, "allocations were made where another one still lived."),
            (self._homeless, "allocations lie in no known segment; their segment is not counted."),
            (self._bad_segments, "segments were given back or taken that were not as they should."),
            (self.unknown_frees, "frees had no allocation."),
            (self.tangled, "events were left out, since what is free could not be told."),
        )
        return tuple(f"{count} {text}" for count, text in met if count)

    def pages_change(self, event: int, addr: int, size: int, new_addr: int, new_size: int) -> None:
        """Record that one free piece of a virtual range replaced another."""
        change = self._pages(new_addr, new_size) - self._pages(addr, size)
        if change:
            self.page_changes.append((event, change))

    def _pages(self, addr: int, size: int) -> int:
        """Return the bytes of the whole pages inside a free piece.

        They are 0 outside of virtual ranges.
        """
        start = self._range_of(addr)
        if start is None or not size:
            return 0
        granule = self._ranges[start][1]
        first = start - (start - addr) // granule * granule
        last = start + (addr + size - start) // granule * granule
        return max(0, last - first)

    def _range_of(self, addr: int) -> int | None:
        at = bisect_right(self._range_starts, addr)
        if not at:
            return None
        start = self._range_starts[at - 1]
        return start if addr < self._ranges[start][0] else None

    def _extend_range(self, addr: int, size: int, *, small: bool) -> None:
        """Add mapped pages to a known range, or begin a new range.

        They belong to a known range if they are at its end or in a hole of it.
        """
        granule = SMALL_SEGMENT if small else self._granule
        at = bisect_right(self._range_starts, addr)
        known = self._ranges[self._range_starts[at - 1]] if at else None
        if known is not None and known[1] == granule and addr <= known[0]:
            known[0] = max(known[0], addr + size)
        elif addr not in self._ranges:
            insort(self._range_starts, addr)
            self._ranges[addr] = [addr + size, granule]

    def segment_event(self, event: int, action: int, addr: int, size: int) -> None:
        """Apply one driver event: memory was taken or released."""
        if action == Action.SEGMENT_ALLOC:
            self._make_room(event, addr, size)
            self.segments[addr] = size
            insort(self._starts, addr)
            self._add(event, addr, size)
        elif action == Action.SEGMENT_FREE:
            known = self.segments.get(addr) == size
            if self.size_at.get(addr) == size and known:
                self._remove(event, addr)
                del self.segments[addr]
                del self._starts[bisect_left(self._starts, addr)]
            else:
                self._bad_segments += 1
                self._forget(event, addr, self.segments.get(addr, size))
        elif action == Action.SEGMENT_MAP:
            self._extend_range(addr, size, small=size < self._granule)
            self._join(event, addr, size)
        elif action == Action.SEGMENT_UNMAP:
            self._cut_out(event, addr, size)

    def _make_room(self, event: int, addr: int, size: int) -> None:
        """Drop the known segments that a new segment overlaps.

        They must have been released.
        """
        at = max(bisect_right(self._starts, addr) - 1, 0)
        over = []
        for start in self._starts[at:]:
            if start >= addr + size:
                break
            if start + self.segments[start] > addr:
                over.append(start)
        for start in over:
            self._bad_segments += 1
            self._forget(event, start, self.segments[start])

    def _forget(self, event: int, addr: int, size: int) -> None:
        """Drop a segment with all of its pieces.

        Blocks that are live in it become orphans.
        """
        self._cut_out(event, addr, size)
        self.orphans.update(i for a, i in self.live.items() if addr <= a < addr + size)
        if self.segments.pop(addr, None) is not None:
            del self._starts[bisect_left(self._starts, addr)]

    def _add(self, event: int, addr: int, size: int) -> None:
        self.size_at[addr] = size
        self.start_at[addr + size] = addr
        if self.segments.get(addr) == size:
            self.whole_changes.append((event, size))
        self.pages_change(event, addr, 0, addr, size)

    def _join(self, event: int, addr: int, size: int) -> None:
        """Add a free piece, merged with free neighbours."""
        before = self.start_at.get(addr)
        if before is not None and addr not in self.segments:
            self._remove(event, before)
            size, addr = size + addr - before, before
        after = self.size_at.get(addr + size, 0)
        if after and addr + size not in self.segments:
            self._remove(event, addr + size)
            size += after
        self._add(event, addr, size)

    def _remove(self, event: int, addr: int) -> None:
        size = self.size_at.pop(addr)
        del self.start_at[addr + size]
        if self.segments.get(addr) == size:
            self.whole_changes.append((event, -size))
        self.pages_change(event, addr, size, addr, 0)

    def _cut_out(self, event: int, addr: int, size: int) -> None:
        """Remove an address range from the free pieces.

        Parts of a piece outside of the range stay free.
        """
        end = addr + size
        touched = [addr] if self.size_at.get(addr, 0) >= size else None
        if touched is None:
            touched = [s for s, n in self.size_at.items() if s < end and s + n > addr]
        for start in touched:
            stop = start + self.size_at[start]
            self._remove(event, start)
            if start < addr:
                self._add(event, start, addr - start)
            if stop > end:
                self._add(event, end, stop - end)

    def repair_allocation(self, event: int, addr: int, piece: int, wanted: int) -> int:
        """Repair the state for an allocation without a sufficient free piece.

        The result is the bytes of its block. Three causes are tried in order. A block that is still
        live at the address must have been freed. The address lies in a free piece, or at the end
        of a block whose size was overestimated. Or the address is in no segment.
        """
        if piece:
            self.size_at[addr] = piece
        old = self.live.pop(addr, None)
        if old is not None:
            self._overlapping += 1
            self._died[old] = event
            self._freed[old] = min(self._freed[old], event)
            if old not in self.orphans:
                self._join(event, addr, self._blocks[old])
        elif self._searches < _MAX_SEARCHES:
            self._searches += 1
            self._find_room(event, addr, wanted)
        have = self.size_at.get(addr, 0)
        if have < wanted:
            self._homeless += 1
            self.orphans.add(len(self._blocks))
            return wanted
        self._remove(event, addr)
        if have > wanted:
            self._add(event, addr + wanted, have - wanted)
        return wanted

    def _find_room(self, event: int, addr: int, wanted: int) -> None:
        """Make a free piece begin at an address by splitting what covers it."""
        if addr in self.size_at:
            return
        for start, size in self.size_at.items():
            if start < addr < start + size:
                self._resized += 1
                self._remove(event, start)
                self._add(event, start, addr - start)
                self._add(event, addr, start + size - addr)
                return
        for start, index in self.live.items():
            size = self._blocks[index]
            if start < addr and addr + wanted <= start + size and index not in self.orphans:
                self._resized += 1
                self._blocks[index] = addr - start
                self._add(event, addr, start + size - addr)
                return
