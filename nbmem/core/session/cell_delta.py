"""Memory change of one cell, as the cell history keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPeak:
    """Highest allocated bytes on one card while a cell ran.

    It is determined once, at the cell's end: by a traced cell's report, else by torch's counter.
    Every view takes it from the cell's CellDelta and writes it with `core.units.format_peak`.

    Attributes:
        device: The card's CUDA ordinal.
        allocated: Bytes.
        exact: Whether it was counted; else it was read now and then, and more is possible.
    """

    device: int
    allocated: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CellDelta:
    """Memory change of one cell on one card, from counters around it.

    Attributes:
        label: The cell's name: its first line, or the name that the user gave.
        execution_count: The number in `In [n]`; None for a cell without one.
        allocated_before: Bytes in live blocks when it started.
        allocated_after: Bytes in live blocks when it ended.
        reserved_before: Bytes held from the driver when it started.
        reserved_after: Bytes held from the driver when it ended.
        peak: Its highest allocated bytes: of the card that `%%memtrace` reports, else of the card
            with the most. None if not read.
        process: Bytes that the driver counts for this process afterwards; None if not reported.
        duration_ns: How long it ran.
        error: The exception that ended it (`OutOfMemoryError`), or None.
    """

    label: str
    execution_count: int | None
    allocated_before: int
    allocated_after: int
    reserved_before: int
    reserved_after: int
    peak: CellPeak | None
    process: int | None
    duration_ns: int
    error: str | None

    @property
    def allocated_delta(self) -> int:
        """Bytes that the cell left allocated, or freed if negative."""
        return self.allocated_after - self.allocated_before

    @property
    def reserved_delta(self) -> int:
        """Bytes that the cell reserved from the driver, negative if it released."""
        return self.reserved_after - self.reserved_before


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDelta:
    """Host memory change of one cell, where torch uses no card's memory.

    Attributes:
        label: The cell's name, as in CellDelta.
        execution_count: The number in `In [n]`; None for a cell without one.
        tensors: Bytes in tensors that it added; None if it was not traced, because no allocator
            counts them.
        process_before: Resident bytes of this process when it started; None if not read.
        process_after: Resident bytes of this process when it ended.
        duration_ns: How long it ran.
        error: The exception that ended it, or None.
    """

    label: str
    execution_count: int | None
    tensors: int | None
    process_before: int | None
    process_after: int
    duration_ns: int
    error: str | None

    @property
    def process_delta(self) -> int | None:
        """Resident bytes that the cell added; None if unknown.

        It is negative if bytes were released.
        """
        return None if self.process_before is None else self.process_after - self.process_before
