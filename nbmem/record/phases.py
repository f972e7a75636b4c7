"""From the hooks' turns to phases: what lies between two turns belongs somewhere, too.

The hooks see a module's call, not the loss behind it; a step, not the batch before it. Between
them: a stretch before a forward is `input` (from the birth of the first tensor that the model was
then given, where a forward or nothing went before), one between backward and an optimizer's step
belongs to `optimizer` (unscaling, clipping), everything else to the phase that it follows. What
comes before the first input of a cell is `load`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.events import Action, Events
from nbmem.core.steps import number_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nbmem.core.session import Marks
    from nbmem.record.turns import Turn

SEED_GRADIENT = 8
"""Bytes, at most, of the ones that backward() begins with; torch makes them before its engine."""
_OPENS_CLOSURE = ("forward", "zero_grad")


@dataclass(slots=True)
class Stretch:
    """A phase in the making: positions in the main card's events, and times."""

    name: str
    first: int
    t0_ns: int
    last: int = -1
    t1_ns: int = -1
    key: int = 0
    step: int | None = None
    parent: int | None = None
    goes_on: bool = False  # an optimizer's step that calls a closure and is not over yet


class PhaseBuilder:
    """Places the turns of one recording in one card's events.

    Args:
        events: The main card's events.
        marks: Its marks.
        births: Positions at which tensors were born that a model was given later, ascending.
    """

    def __init__(self, events: Events, marks: Marks, births: NDArray[np.int64]) -> None:
        self._events = events
        self._marks = marks
        self._births = births
        self._done: list[Stretch] = []
        self._nested: list[Stretch] = []
        self._open: Stretch | None = None
        self._left = 0  # mark at which the open forward's module returned
        self._gap = 0  # mark at which the last phase ended
        self._around: int | None = None  # key of the optimizer inside whose step the pass runs

    def build(self, turns: Sequence[Turn]) -> list[Stretch]:
        """Phases in order of their start, with steps; recompute inside its backward."""
        for turn in turns:
            if turn.kind == "recompute":
                self._recompute(turn)
            elif turn.begins:
                self._begin(turn)
            else:
                self._end(turn)
        self._finish()
        number_steps(self._done)
        return self._with_nested()

    # --- turns

    def _begin(self, turn: Turn) -> None:
        running = self._open
        if turn.kind == "optimizer":
            self._around = turn.key if turn.closure else None
        elif running is not None and self._around is not None and running.key == self._around:
            running.goes_on = True
        if running is not None and running.name in ("forward", "inference"):
            self._leave_forward(running, turn)
        elif running is not None and running.goes_on and running.first == self._position(turn.mark):
            self._open, self._gap = None, turn.mark  # nothing was done before the closure
        elif running is not None:  # its end was never told: an optimizer's step that raised
            self._close(turn.mark)
        self._open = Stretch(turn.kind, *self._bridge(turn), key=turn.key)
        self._left = turn.mark

    def _bridge(self, turn: Turn) -> tuple[int, int]:
        """Give the gap before a phase to somebody; returns where the phase begins."""
        before = self._done[-1].name if self._done else None
        if self._around is not None and before == "backward" and turn.kind in _OPENS_CLOSURE:
            if self._position(turn.mark) > self._position(self._gap):
                self._back_to_optimizer(turn.mark, goes_on=True)
        elif before is None or turn.kind in ("forward", "inference"):
            self._input_before(turn)
        elif turn.kind == "optimizer" and before == "backward":
            return self._place(self._gap)
        elif turn.kind == "backward":
            seed = self._before_seed(turn.mark)
            if seed[0] > self._position(self._gap):  # a loss computed behind zero_grad()
                self._close_at(Stretch("forward", *self._place(self._gap)), *seed)
            return seed
        else:
            self._extend_last(turn.mark)
        return self._place(turn.mark)

    def _leave_forward(self, running: Stretch, turn: Turn) -> None:
        """A forward or inference goes on until the next phase or the next input's birth."""
        birth = None
        if turn.kind in ("forward", "inference"):
            birth = self._first_birth(self._position(self._left), self._position(turn.mark))
        if birth is None:
            self._close(turn.mark, shift=turn.kind == "backward")
            return
        self._close_at(running, birth, self._time_of(birth))
        self._add("input", (birth, self._time_of(birth)), turn.mark)

    def _input_before(self, turn: Turn) -> None:
        start, end = self._position(self._gap), self._position(turn.mark)
        if self._done:
            if end > start:
                self._add("input", self._place(self._gap), turn.mark)
            return
        birth = self._first_birth(start, end)
        split = end if birth is None else birth
        if split > start:
            self._close_at(Stretch("load", *self._place(self._gap)), split, self._time_of(split))
        if birth is not None:
            self._add("input", (birth, self._time_of(birth)), turn.mark)

    def _extend_last(self, mark: int) -> None:
        """Between optimizer and zero_grad: the scaler's update, or already the next batch."""
        last, end = self._done[-1], self._position(mark)
        birth = self._first_birth(last.last, end)
        split = end if birth is None else birth
        last.last, last.t1_ns = split, self._time_of(split)
        if birth is not None:
            self._add("input", (birth, self._time_of(birth)), mark)

    def _end(self, turn: Turn) -> None:
        if turn.kind == "optimizer" and turn.key == self._around:
            self._end_of_closure(turn)
        elif self._open is None:
            return
        elif turn.kind in ("forward", "inference"):
            self._left = turn.mark
        elif self._open.name == turn.kind:
            self._close(turn.mark)

    def _end_of_closure(self, turn: Turn) -> None:
        if self._open is not None and self._open.name == "optimizer":  # it was never called
            self._close(turn.mark)
        else:
            if self._open is not None:
                self._close(self._left)
            self._back_to_optimizer(turn.mark, goes_on=False)
        self._around = None

    def _back_to_optimizer(self, mark: int, *, goes_on: bool) -> None:
        """What follows a backward inside of its step, up to here, is the optimizer's."""
        key = self._around or 0
        self._open = Stretch("optimizer", *self._place(self._gap), key=key, goes_on=goes_on)
        self._close(mark)

    def _recompute(self, turn: Turn) -> None:
        if turn.begins:
            self._nested.append(Stretch("recompute", *self._place(turn.mark)))
        elif self._nested and self._nested[-1].last < 0:
            self._nested[-1].last, self._nested[-1].t1_ns = self._place(turn.mark)

    def _finish(self) -> None:
        final = len(self._marks) - 1
        if self._open is not None:
            self._close(final)
        elif not self._done and self._position(final) > 0:
            self._add("load", self._place(0), final)

    # --- placing

    def _position(self, mark: int) -> int:
        return int(self._marks.position[mark])

    def _place(self, mark: int) -> tuple[int, int]:
        return self._position(mark), int(self._marks.t_ns[mark])

    def _before_seed(self, mark: int) -> tuple[int, int]:
        position, t_ns = self._place(mark)
        events = self._events
        if (
            position
            and events.action[position - 1] == Action.ALLOC
            and events.size[position - 1] <= SEED_GRADIENT
        ):
            position -= 1
        return position, t_ns

    def _time_of(self, position: int) -> int:
        times = self._events.t_ns
        return int(times[min(position, len(times) - 1)]) if len(times) else 0

    def _first_birth(self, start: int, end: int) -> int | None:
        index = int(np.searchsorted(self._births, start))
        if index < len(self._births) and self._births[index] < end:
            return int(self._births[index])
        return None

    def _close(self, mark: int, *, shift: bool = False) -> None:
        assert self._open is not None  # noqa: S101 - callers have just looked
        position, t_ns = self._before_seed(mark) if shift else self._place(mark)
        self._close_at(self._open, position, t_ns)
        self._gap = mark

    def _close_at(self, stretch: Stretch, position: int, t_ns: int) -> None:
        stretch.last, stretch.t1_ns = max(stretch.first, position), max(stretch.t0_ns, t_ns)
        self._done.append(stretch)
        self._open = None

    def _add(self, name: str, start: tuple[int, int], end_mark: int) -> None:
        self._close_at(Stretch(name, *start), *self._place(end_mark))
        self._gap = end_mark

    def _with_nested(self) -> list[Stretch]:
        phases = list(self._done)
        backwards = [i for i, phase in enumerate(self._done) if phase.name == "backward"]
        ends = [self._done[i].last for i in backwards]  # ascending, as they began
        for inner in self._nested:
            at = bisect_left(ends, inner.first)
            if inner.last < 0 or at == len(backwards):
                continue
            outer = self._done[backwards[at]]
            if outer.first <= inner.first:
                phases.append(replace(inner, parent=backwards[at], step=outer.step))
        return phases
