"""Tell leaks from additions on purpose: rollouts, bounded buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import BEYOND
from nbmem.core.session.tensor_names import without_shape
from nbmem.core.session.variable_paths import parse_path
from nbmem.report.ledger.allocation_facts import NO_NAME

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.growth_candidates import Candidate
    from nbmem.report.analysis.iterations import Rise
    from nbmem.report.ledger.card_ledger import CardLedger

MANY = 8
"""Iterations from which allocations without a name may be one list."""
LARGE = 0.1
"""Part of all allocated bytes that such a list must have."""
PIECEWISE = 0.25
"""Part of a variable's items that are freed at different moments where they are replaced."""


class Exemptions:
    """Facts of a recording that make an addition harmless.

    Args:
        card_ledger: The card's ledger.
        until: The position at which growth is measured.
    """

    def __init__(self, card_ledger: CardLedger, until: int) -> None:
        self._card_ledger, self._until = card_ledger, until
        a = card_ledger.allocations
        self._freed = np.flatnonzero((a.freed < until) & (a.allocated_at >= 0) & (a.addr < BEYOND))
        self._allocated = np.sort(a.allocated_at[a.addr < BEYOND])
        self._updates = np.array(
            sorted(
                card_ledger.bounds(span)[0]
                for span in card_ledger.session.spans
                if span.kind == "phase" and span.name == "backward"
            ),
            np.int64,
        )

    def earlier_items(self, candidate: Candidate) -> Ints:
        """Return allocations that may have been items of the same variable.

        They were freed before the position, have the size of an item and no other name.
        """
        card_ledger, freed = self._card_ledger, self._freed
        a = card_ledger.allocations
        rows = freed[np.isin(a.requested[freed], np.unique(a.requested[candidate.rows]))]
        own = parse_path(candidate.paths[0]).variable if candidate.paths else None
        names = [
            name
            for name in np.unique(card_ledger.names[rows]).tolist()
            if name == NO_NAME or parse_path(without_shape(card_ledger.texts[name])).variable == own
        ]
        return rows[np.isin(card_ledger.names[rows], names)]

    def is_harmless(self, candidate: Candidate, rise: Rise) -> bool:
        """Return whether what was added is no leak."""
        if candidate.by_graph:
            return candidate.root is None and not self._of_many_steps(candidate.rows)
        if self._is_trained_on(candidate.rows) or self._is_freed_piecewise(candidate.rows):
            return True
        if rise.iterations < MANY and self._is_filled_again(candidate.rows):
            return True
        return candidate.root is None and not self._is_list(candidate.rows, rise)

    def _is_freed_piecewise(self, rows: Ints) -> bool:
        """Return whether allocations were freed at many moments.

        A bounded buffer frees them so; a function's list ends at one moment.
        """
        a = self._card_ledger.allocations
        ended = rows[a.freed[rows] < self._card_ledger.events]
        moments = np.unique(np.searchsorted(self._allocated, a.freed[ended]))
        return len(moments) > PIECEWISE * len(rows)

    def _is_filled_again(self, rows: Ints) -> bool:
        """Return whether the variable has new items after these were freed."""
        card_ledger, a = self._card_ledger, self._card_ledger.allocations
        names = np.unique(card_ledger.names[rows])
        later = a.allocated_at >= a.freed[rows].max()
        return bool(np.any(later & np.isin(card_ledger.names, names[names != NO_NAME])))

    def _of_many_steps(self, rows: Ints) -> bool:
        """Return whether activations are those of several steps.

        The results of several forwards may have one backward.
        """
        card_ledger = self._card_ledger
        phases = card_ledger.born_in[rows]
        phases = np.unique(phases[card_ledger.phases.named(phases, "forward")])
        steps = {card_ledger.phases.passes[phase] for phase in phases.tolist()}
        return len(steps) > 2

    def _is_trained_on(self, rows: Ints) -> bool:
        """Return whether a backward uses what was collected before it.

        None ran while it was collected, but one did before it was freed.
        """
        a = self._card_ledger.allocations
        rows = rows[a.allocated_at[rows] >= 0]
        first, last = int(a.allocated_at[rows[0]]), int(a.allocated_at[rows[-1]])
        end = min(int(np.median(a.freed[rows])), self._card_ledger.events)
        begun, before, after = np.searchsorted(self._updates, [first, last, end]).tolist()
        return bool(begun == before < after)

    def _is_list(self, rows: Ints, rise: Rise) -> bool:
        """Return whether allocations without a name are surely one list."""
        a = self._card_ledger.allocations
        size = int(a.block[rows].sum())
        least = LARGE * int(self._card_ledger.allocated[self._until])
        return rise.iterations >= MANY and rise.works and size >= least
