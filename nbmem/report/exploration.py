"""Lifetimes, lines, growth and layouts of the pool, for views."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.categories import Category


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """An allocation and its lifetime: positions p with born < p <= freed.

    Attributes:
        number: Index of the allocation in the recording, in allocation order.
        born: Event that allocated it; -1 before the recording.
        freed: Event of its free; the number of events if never.
        name: Its description (`model.conv1.weight (64, 3, 7, 7) float32`), or None.
        category: Its category.
        requested: Requested bytes.
        block: Bytes taken for it.
        born_in: Phase and step that allocated it (`forward, step 0`), or None before the recording.
        line: `file.py:12 in function` that made it, if a stack was taken.
        stack: The user's lines that allocated it, the innermost first; empty without a stack.
        holders: Paths that held it at the end, best first: `checkpoint['model']['weight']`; empty
            if holders were not searched or it was freed.
    """

    number: int
    born: int
    freed: int
    name: str | None
    category: Category
    requested: int
    block: int
    born_in: str | None
    line: str | None
    stack: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LineRow:
    """Block bytes that one line of the recorded code took.

    Attributes:
        number: Line number, from 1; None for memory that no line took.
        text: Its code, or why no line is known.
        peak: Bytes it took that were live at the recording's peak.
        kept: Bytes it took that were live at the end.
        taken: All bytes it took, summed over all passes.
    """

    number: int | None
    text: str
    peak: int
    kept: int
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Allocated bytes by the line of the recorded code that took them.

    A line includes what its calls allocated and the backward that it started. Lines and the rest
    add up: `peak` to the report's peak of allocated bytes, `kept` to allocated bytes at the end.

    Attributes:
        file: Display name of the recorded code's file: `train.py`, `In [7]`.
        code: Numbers and texts of the lines that are shown; empty where the text is not known.
        rows: The lines that took memory, in the order of the code.
        elsewhere: Memory that no line took, by reason.
    """

    file: str
    code: tuple[tuple[int, str], ...]
    rows: tuple[LineRow, ...]
    elsewhere: tuple[LineRow, ...]

    def shortened(self, most: int, around: int) -> Lines:
        """Return a copy with only the code near lines that took memory.

        Code of up to `most` lines is returned whole.

        Args:
            most: Number of lines up to which the code is returned whole.
            around: In longer code, lines to retain before and after each line that took memory.
        """
        if len(self.code) <= most:
            return self
        steps = range(-around, around + 1)
        near = {row.number + step for row in self.rows if row.number for step in steps}
        return replace(self, code=tuple(line for line in self.code if line[0] in near))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingHolder:
    """A variable that keeps more with each step, and its bytes step by step.

    Attributes:
        name: What gains, as a sentence names it: `` `preds` in evaluate() ``; None without a name.
        category: The category of most of its bytes.
        slope: Block bytes that a step adds (the median).
        iterations: How many steps added something.
        held: Block bytes that it keeps at the end of each of the steps.
        line: The line that adds to it, or else the one that allocated most of it:
            `train.py:12`. None if neither is known.
        number: That line's number in the recorded code; None if it is not there.
        code: That line's text; empty if it is not known.
    """

    name: str | None
    category: Category
    slope: int
    iterations: int
    held: tuple[int, ...]
    line: str | None = None
    number: int | None = None
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrowth:
    """Holders that gain from step to step, the steepest first.

    Attributes:
        steps: Numbers of the steps that are shown: all, or some of a long loop, the last included.
        events: The position at which each of them ends.
        allocated: Bytes in live blocks at each end.
        holders: What grows, the steepest first.
        more: How many other holders grow.
        left: Steps after which the card is full at this rate; None if that is not known.
    """

    steps: tuple[int, ...]
    events: tuple[int, ...]
    allocated: tuple[int, ...]
    holders: tuple[GrowingHolder, ...]
    more: int = 0
    left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpan:
    """A cell inside the recording, by time and by event.

    Attributes:
        name: Its label.
        t0_ns: Start, since the start of the recording.
        t1_ns: End.
        first: Its first event.
        last: The event after its last.
    """

    name: str
    t0_ns: int
    t1_ns: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSegment:
    """Memory that torch took from the driver in one piece.

    Attributes:
        size: Bytes.
        small: Whether it serves requests up to 1 MiB.
        expandable: Whether its pages are mapped on demand.
        stream: The stream that owns it.
        pool: 0 for the default pool; else a private one (CUDA graphs).
    """

    size: int
    small: bool
    expandable: bool
    stream: int
    pool: int


RELEASABLE, STUCK = -2, -1
"""Kinds of free pieces. RELEASABLE: empty_cache() returns it. STUCK: free between blocks in use, so
empty_cache() cannot. Other pieces have their category as kind, with these added:"""
PENDING, MIXED = 64, 128
"""PENDING: freed, but a stream still uses it. MIXED: narrow pieces merged, kind of the largest."""
GONE = -1
"""In place of a tiling: the segment does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolHistory:
    """The allocator's map at some moments.

    Segments are created, tiled in changing ways, and released.

    Attributes:
        event: The moments: index of the next event, ascending, shape (n,).
        segments: Every segment that existed at one of them.
        tilings: The distinct tilings of segments. Rows are in address order: bytes, kind, number of
            blocks and, in a mixed piece, free bytes.
        states: For each segment, index pairs (moment, tiling) at each change of its tiling; GONE
            where it was released. It does not exist before its first pair.
    """

    event: Ints
    segments: tuple[PoolSegment, ...]
    tilings: tuple[Ints, ...]
    states: tuple[tuple[tuple[int, int], ...], ...]

    def at(self, row: int) -> list[tuple[PoolSegment, Ints]]:
        """Return the segments at a moment with their tilings, largest first."""
        found = []
        for segment, states in zip(self.segments, self.states, strict=True):
            index = bisect_right(states, row, key=lambda state: state[0])
            tiling = states[index - 1][1] if index else GONE
            if tiling != GONE:
                found.append((segment, self.tilings[tiling]))
        return sorted(found, key=lambda item: -item[0].size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Details:
    """Data that lead from the peak to any other moment, for views.

    Attributes:
        phases: First event, and the one after the last, of each of the report's phases.
        cells: The cells that were recorded.
        live: Allocations of each live category at each of the timeline's moments, (n, len(LIVE)).
        lines: The user's line whose event led to each moment; None where no stack was taken.
        lives: The allocations that are listed individually, in allocation order.
        pool: The allocator's map at each of the timeline's moments.
    """

    phases: tuple[tuple[int, int], ...]
    cells: tuple[CellSpan, ...]
    live: Ints
    lines: tuple[str | None, ...]
    lives: tuple[Lifetime, ...]
    pool: PoolHistory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MomentDetails:
    """Exact figures of single moments, where a view has only a timeline.

    Attributes:
        t_ns: Nanoseconds since the start of the recording, ascending, shape (n,).
        event: Index of the next event at each moment, shape (n,).
        held: Bytes by category, shape (n, len(Category)).
        live: Allocations of each live category, shape (n, len(LIVE)).
        lines: The user's line whose event led to each moment; None where no stack was taken.
        lives: The largest live allocations at the chosen moment, in allocation order.
        pool: The allocator's map at that moment, with no blocks merged.
        parts: Parts of the host's memory, shape (n, len(host_memory.PARTS)); None for a card.
    """

    t_ns: Ints
    event: Ints
    held: Ints
    live: Ints
    lines: tuple[str | None, ...]
    lives: tuple[Lifetime, ...]
    pool: PoolHistory
    parts: Ints | None = None
