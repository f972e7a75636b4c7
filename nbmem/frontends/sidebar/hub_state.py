"""The hub's state, for pages that connect later and for reloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nbmem.frontends.sidebar.messages import Cell, CellEnded, LastReport, Process, Sample
    from nbmem.frontends.sidebar.rank_messages import RanksNow


class HubState(NamedTuple):
    """A snapshot of the hub's state.

    Attributes:
        cell: The cell that runs; the first one if a subshell runs another beside it.
        samples: Samples pushed in the last minute.
        cells: The last cells.
        report: Report of the last trace.
        processes: The other processes on the cards, as last read.
        ranks: Latest data of a cell's ranks; None if none has started any.
        notes: Faults, one sentence each.
    """

    cell: Cell | None = None
    samples: tuple[Sample, ...] = ()
    cells: tuple[CellEnded, ...] = ()
    report: LastReport | None = None
    processes: tuple[Process, ...] = ()
    ranks: RanksNow | None = None
    notes: tuple[str, ...] = ()
