"""What leads a view from the peak to any other moment: lives of allocations, the pool's map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from nbmem.core.categories import Category


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One allocation and when it lived: at every position p with born < p <= freed.

    Attributes:
        born: Event of its birth; -1 before the recording.
        freed: Event of its free; the number of events if never.
        name: What is known of it (`model.conv1.weight (64, 3, 7, 7) float32`), or None.
        category: Its category.
        requested: Bytes asked for.
        block: Bytes taken for it.
        born_in: Phase and step of its birth (`forward, step 0`), or None before the recording.
        line: `file.py:12 in function` that made it, if a stack was taken.
    """

    born: int
    freed: int
    name: str | None
    category: Category
    requested: int
    block: int
    born_in: str | None
    line: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
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
class Piece:
    """Neighbouring blocks of a segment that are alike, or a free gap between them.

    Attributes:
        offset: Bytes from the segment's start.
        size: Bytes.
        state: In use; freed but awaited by a stream; free and given back by empty_cache(); free
            between blocks in use, which empty_cache() cannot give back.
        category: Of a used or pending piece; None for a free one.
        blocks: How many blocks it stands for; 0 for a free one.
    """

    offset: int
    size: int
    state: Literal["used", "pending", "releasable", "stuck"]
    category: Category | None
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSegment:
    """Memory that torch took from the driver in one piece.

    Attributes:
        size: Bytes.
        small: Whether it serves requests up to 1 MiB.
        expandable: Whether its pages are mapped on demand.
        stream: The stream that owns it.
        pool: 0 for the default pool; else a private one (CUDA graphs).
        pieces: What tiles it, by offset.
    """

    size: int
    small: bool
    expandable: bool
    stream: int
    pool: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The allocator's map at one moment.

    Attributes:
        event: Index of the next event.
        segments: The largest, descending.
        others: How many more there are.
        other_bytes: Their bytes.
        used: Bytes of blocks in use or pending, in all segments.
        releasable: What empty_cache() would give back.
        stuck: Free bytes that it could not.
    """

    event: int
    segments: tuple[PoolSegment, ...]
    others: int
    other_bytes: int
    used: int
    releasable: int
    stuck: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Details:
    """What leads from the peak to any other moment, for views that a person explores.

    Attributes:
        phases: First event, and the one after the last, of each of the report's phases.
        cells: The cells that were recorded.
        live: Allocations of each live category at each of the timeline's moments, (n, len(LIVE)).
        lines: The user's line whose event led to each moment; None where no stack was taken.
        lives: The allocations that are told one by one, in the order of birth.
        pools: The allocator's map at the peak and at the end.
    """

    phases: tuple[tuple[int, int], ...]
    cells: tuple[Stretch, ...]
    live: NDArray[np.int64]
    lines: tuple[str | None, ...]
    lives: tuple[Life, ...]
    pools: tuple[Pool, ...]
