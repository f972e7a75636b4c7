"""Map event positions to phases, for a million positions at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints, Mask
    from nbmem.core.session.spans import Span

NOWHERE = -1
"""Outside of every phase."""
CALLS = ("forward", "inference")
"""Phases in which modules are called."""


class PhaseMap:
    """Outermost phases of one card, with their event ranges.

    Phases inside another phase are left out, and so are phases without events on the card.

    Args:
        spans: The session's spans.
        device: Index of the card in the session.

    Attributes:
        passes: For each phase, the step that contains or precedes it; -1 before the first step.
    """

    def __init__(self, spans: Sequence[Span], device: int) -> None:
        self.spans = [
            (index, span)
            for index, span in enumerate(spans)
            if span.kind == "phase"
            and (span.parent is None or spans[span.parent].kind != "phase")
            and span.last[device] > span.first[device]
        ]
        self.names = np.array([span.name for _, span in self.spans] or [""], dtype=np.str_)
        self._first = np.array([span.first[device] for _, span in self.spans], np.int64)
        self._last = np.array([span.last[device] for _, span in self.spans], np.int64)
        self.passes: list[int] = []
        for _, span in self.spans:
            before = self.passes[-1] if self.passes else -1
            self.passes.append(before if span.step is None else span.step)
        self._device = device

    def of(self, events: Ints) -> Ints:
        """Return the index of each event's phase, or NOWHERE outside of one."""
        if not len(self._first):
            return np.full(len(events), NOWHERE, np.int64)
        index = np.searchsorted(self._first, events, side="right") - 1
        inside = (index >= 0) & (events < self._last[np.maximum(index, 0)])
        return np.where(inside, index, NOWHERE)

    def bounds(self, phase: int) -> tuple[int, int]:
        """Return a phase's first event and the one after its last."""
        return int(self._first[phase]), int(self._last[phase])

    def gap_of(self, events: Ints) -> Ints:
        """Return the index of the gap between phases in which each event lies.

        Inside of a phase the index is NOWHERE.
        """
        after: Ints = np.searchsorted(self._first, events, side="right")
        return np.where(self.of(events) == NOWHERE, after, NOWHERE)

    def named(self, phases: Ints, *names: str) -> Mask:
        """Return a mask of the phases, by index, that have one of the names.

        NOWHERE has none.
        """
        named = np.isin(self.names, names)[np.maximum(phases, 0)]
        inside: Mask = named & (phases != NOWHERE)
        return inside

    def next_pass_ends(self, name: str) -> Ints:
        """Return for each phase where a later pass's last phase of a name ends.

        The next pass with such a phase counts; without one the value is the largest integer. A pass
        is a step and the phases without a step that follow it. The time before the first step is a
        pass, too.
        """
        own = self.passes
        ends = {
            step: span.last[self._device]
            for step, (_, span) in zip(own, self.spans, strict=True)
            if span.name == name
        }
        steps = np.array(sorted(ends), np.int64)
        after = np.array([*(ends[step] for step in steps.tolist()), np.iinfo(np.int64).max])
        found: Ints = after[np.searchsorted(steps, np.array(own, np.int64), side="right")]
        return found
