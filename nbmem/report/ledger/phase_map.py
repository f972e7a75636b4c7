"""Which phase a position lies in, for a million positions at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nbmem.core.session.spans import Span

    Ints = NDArray[np.int64]

NOWHERE = -1
"""Outside of every phase."""
CALLS = ("forward", "inference")
"""Phases in which modules are called."""


class PhaseMap:
    """The phases of one card that lie beside each other (those inside another are left out).

    Args:
        spans: The session's spans.
        device: Index of the card in the session.

    Attributes:
        passes: Of each the step that it lies in or behind; -1 before the first.
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
        """Index of each event's phase, NOWHERE outside of one."""
        if not len(self._first):
            return np.full(len(events), NOWHERE, np.int64)
        index = np.searchsorted(self._first, events, side="right") - 1
        inside = (index >= 0) & (events < self._last[np.maximum(index, 0)])
        return np.where(inside, index, NOWHERE)

    def bounds(self, phase: int) -> tuple[int, int]:
        """A phase's first event, and the one after its last."""
        return int(self._first[phase]), int(self._last[phase])

    def gap_of(self, events: Ints) -> Ints:
        """Between which two phases each event lies; inside of one it is NOWHERE."""
        after: Ints = np.searchsorted(self._first, events, side="right")
        return np.where(self.of(events) == NOWHERE, after, NOWHERE)

    def named(self, phases: Ints, *names: str) -> NDArray[np.bool_]:
        """Whether each phase (by index) has one of the names."""
        named = np.isin(self.names[np.maximum(phases, 0)], names)
        inside: NDArray[np.bool_] = named & (phases != NOWHERE)
        return inside

    def next_pass_ends(self, name: str) -> Ints:
        """For each phase where the next pass's last phase of a name ends; a huge number if never.

        A pass is a step, with what lies behind it and has none; what comes before is one, too.
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
