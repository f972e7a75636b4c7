"""Allocator events and layouts as numpy columns.

A million events must load and balance in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.core.arrays import Codes, Ints


class Action(IntEnum):
    """One kind of entry in the allocator's history, as torch names it."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8


BEYOND = 1 << 60
"""First address without tensors: for what a device's counters count beyond observed tensors."""
TAKES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
"""Actions by which torch takes memory from the driver."""
GIVES_BACK = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
"""Actions by which torch returns memory to the driver."""


NOT_KNOWN = -1
"""Columns hold no None; this value replaces it, and `none_if_unknown()` converts it back."""


def none_if_unknown(value: int) -> int | None:
    """Return a column's value, or None where it is NOT_KNOWN."""
    return None if value == NOT_KNOWN else int(value)


class BlockState(IntEnum):
    """State of a block in a layout."""

    INACTIVE = 0
    ALLOCATED = 1
    PENDING = 2


class Columns:
    """Equal-length numpy columns.

    A base for frozen dataclasses whose fields are all columns.
    """

    __slots__ = ()

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, ...]]) -> Self:
        """Return the columns of a table whose rows have the order of the fields."""
        names = fields(cls)  # type: ignore[arg-type]
        table = np.array(list(rows), np.int64).reshape(-1, len(names)).T
        types = (np.uint8 if field.type == "Codes" else np.int64 for field in names)
        columns = (column.astype(kind) for column, kind in zip(table, types, strict=True))
        return cls(**dict(zip((field.name for field in names), columns, strict=True)))

    @classmethod
    def empty(cls) -> Self:
        """Return columns without rows."""
        return cls.from_rows(())

    def __len__(self) -> int:
        first: Any = getattr(self, fields(self)[0].name)  # type: ignore[arg-type]
        return len(first)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Self:
        """Return the columns at the selected rows."""
        return type(self)(**{name: column[rows] for name, column in self.columns()})

    def columns(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the name and the array of each column."""
        for field in fields(self):  # type: ignore[arg-type]
            yield field.name, getattr(self, field.name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events(Columns):
    """The allocator's actions on one device, in the allocator's own order.

    Attributes:
        action: Action codes.
        addr: Address; 0 for SNAPSHOT; for OOM the free bytes of the device (as torch writes them).
        size: Bytes: *requested* for ALLOC and FREE_*, the segment's for SEGMENT_*, rounded for OOM.
        stream: CUDA stream handle; 0 is the legacy default stream.
        t_ns: Nanoseconds since the epoch (torch's history has microseconds).
        stack: Index into the session's stacks, or -1 if none was taken.
    """

    action: Codes
    addr: Ints
    size: Ints
    stream: Ints
    t_ns: Ints
    stack: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments(Columns):
    """Segments held from the driver at one moment, sorted by address.

    The order is that of torch's snapshot.

    An expandable segment is one row for each contiguous mapped range.

    Attributes:
        addr: Start.
        size: Bytes.
        stream: The stream that owns it.
        small: 1 for a segment of the small pool (requests up to 1 MiB).
        expandable: 1 if its pages are mapped on demand.
        pool: 0 for the default pool; n for torch's private pool (0, n), -n for (n, 0) of a capture.
    """

    addr: Ints
    size: Ints
    stream: Ints
    small: Codes
    expandable: Codes
    pool: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks(Columns):
    """The blocks that tile the segments at one moment, sorted by address.

    Attributes:
        addr: Start.
        size: Block bytes.
        requested: Requested bytes; meaningless while INACTIVE.
        state: BlockState codes.
        stack: Index into the session's stacks, or -1.
    """

    addr: Ints
    size: Ints
    requested: Ints
    state: Codes
    stack: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Every segment and block of one device at one moment."""

    segments: Segments
    blocks: Blocks

    @classmethod
    def empty(cls) -> Self:
        """Return the layout of a device without segments."""
        return cls(segments=Segments.empty(), blocks=Blocks.empty())


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python stack."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""Innermost frame first, as torch records it."""
