"""Build phases from hook events and from what lies between them.

The hooks report a module's call, but not the loss after it. They report a step, but not the batch
before it. What lies between two hook events also belongs to a phase:

- A gap before a forward is `input`. If a forward or nothing preceded it, `input` begins with the
  first tensor that the model was then given.
- A gap between backward and an optimizer's step belongs to `optimizer` (unscaling, clipping). So
  does an update that is written by hand.
- A gap before a backward for which no module was called is the `forward` of that backward.
- The allocation of a new model's weights is `load`.
- Everything else belongs to the preceding phase.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.capture.record.draft_phases import DraftPhase, following, joined, on_card, with_nested
from nbmem.core.session.events import Action, Events
from nbmem.core.session.steps import number_steps

if TYPE_CHECKING:
    from nbmem.capture.record.hook_events import HookEvent
    from nbmem.capture.record.unhooked_intervals import UnhookedIntervals
    from nbmem.core.session.session import CounterSamples

    Place = tuple[int, int]
    """A position in the main card's events, and its time."""

SEED_GRADIENT = 8
"""Limit of bytes of the ones with which backward() begins; torch allocates them before its
engine."""
_CALLS = ("forward", "inference")
_OPENS_CLOSURE = ("forward", "zero_grad")
_COUNTED = ("optimizer", "forward")  # by changes, by nodes: they may have allocated nothing
_IN_BACKWARD = ("optimizer", "zero_grad")


class PhaseBuilder:
    """Places the hook events of one recording in one card's events.

    Args:
        events: The main card's events.
        counter_samples: Its counter samples.
        gaps: Infers what ran between two positions in the events.
        seeds: Whether the events include the gradient of ones with which a backward begins.
    """

    def __init__(
        self,
        events: Events,
        counter_samples: CounterSamples,
        gaps: UnhookedIntervals,
        *,
        seeds: bool = True,
    ) -> None:
        self._seed = SEED_GRADIENT if seeds else 0
        self._looked_at: Collection[int] = ()
        self._events = events
        self._counter_samples = counter_samples
        self._gaps = gaps
        self._done: list[DraftPhase] = []
        self._nested: list[DraftPhase] = []
        self._open: DraftPhase | None = None
        self._left = 0  # sample at which the open forward's module returned
        self._gap = 0  # sample at which the last phase ended
        self._around: int | None = None  # key of the optimizer inside whose step the pass runs
        self._called: set[int] = set()  # keys of the modules called so far
        self._next: HookEvent | None = None  # what begins now, or after zero_grad()

    def build(
        self,
        hook_events: Sequence[HookEvent],
        *,
        updated: bool = False,
        unchanged: bool = False,
        looked_at: Collection[int] = (),
    ) -> list[DraftPhase]:
        """Build the phases in order of their start, with step numbers.

        What runs inside a backward is nested in it.

        Args:
            hook_events: The hook events.
            updated: Whether weights were updated by hand after the last of them.
            unchanged: Whether they were certainly not.
            looked_at: Counter samples of forwards that no backward has used.
        """
        self._looked_at = looked_at
        hook_events = on_card(hook_events, self._position)
        for hook_event, self._next in zip(hook_events, following(hook_events), strict=True):
            in_backward = self._open is not None and self._open.name == "backward"
            if hook_event.kind == "recompute" or (in_backward and hook_event.kind in _IN_BACKWARD):
                self._nest(hook_event)
            elif hook_event.begins:
                self._begin(hook_event)
            else:
                self._end(hook_event)
        self._finish(updated=updated, unchanged=unchanged)
        self._split_first_load()
        number_steps(self._done)
        self._done = joined(self._done)
        return with_nested(self._done, self._nested)

    # --- hook events

    def _begin(self, hook_event: HookEvent) -> None:
        running = self._open
        if hook_event.kind == "optimizer":
            self._around = hook_event.key if hook_event.closure else None
        elif running is not None and self._around is not None and running.key == self._around:
            running.goes_on = True
        if running is not None and running.name in _CALLS:
            self._leave_forward(running, hook_event)
        elif (
            running is not None
            and running.goes_on
            and running.first == self._position(hook_event.sample)
        ):
            self._open, self._gap = None, hook_event.sample  # nothing was done before the closure
        elif running is not None:  # without an end event: an optimizer's step that raised
            self._close(hook_event.sample)
        self._open = DraftPhase(hook_event.kind, *self._bridge(hook_event), key=hook_event.key)
        self._open.looked_at = hook_event.sample in self._looked_at
        self._left = hook_event.sample
        if hook_event.kind in _CALLS:
            self._called.add(hook_event.key)

    def _bridge(self, hook_event: HookEvent) -> Place:
        """Assign the gap before a phase, and return where the phase begins."""
        before = self._done[-1].name if self._done else None
        if self._around is not None and before == "backward" and hook_event.kind in _OPENS_CLOSURE:
            if self._position(hook_event.sample) > self._position(self._gap):
                self._back_to_optimizer(hook_event.sample, goes_on=True)
            return self._place(hook_event.sample)
        if hook_event.kind == "optimizer" and before == "backward":
            return self._place(self._gap)
        end = (
            self._before_seed(hook_event.sample)
            if hook_event.kind == "backward"
            else self._place(hook_event.sample)
        )
        self._fill(hook_event, self._place(self._gap), end)
        return end

    def _fill(self, hook_event: HookEvent, start: Place, end: Place) -> None:
        """Close the gap before a hook event with the phases found in it."""
        pieces = self._pieces(hook_event, start[0], end[0])
        edges = [start, *((first, self._time_of(first)) for _, first in pieces[1:]), end]
        for (name, _), begins, ends in zip(pieces, edges, edges[1:], strict=False):
            if name is None:
                self._done[-1].last, self._done[-1].t1_ns = ends
            elif ends[0] > begins[0] or name in _COUNTED:
                self._close_at(DraftPhase(name, *begins), *ends)
        self._gap = hook_event.sample

    def _pieces(self, hook_event: HookEvent, start: int, end: int) -> list[tuple[str | None, int]]:
        """Return the parts of a gap, each with the position where it begins.

        None in place of a phase's name continues the phase before.
        """
        before = self._done[-1].name if self._done else None
        pieces: list[tuple[str | None, int]] = []
        at, rest = start, None if before else "load"
        if before == "optimizer" or (before == "backward" and not hook_event.unchanged):
            others = self._new_weights(start, end) if before == "optimizer" else None
            update = self._gaps.update(start, end if others is None else others[0])
            if update is None and hook_event.updated and before == "backward":
                update = self._gaps.until_input(start, end)
            if update is not None:  # after an optimizer: an average, a target network
                pieces, at = [("optimizer" if before == "backward" else None, start)], update
        if before and self._follows("backward") and hook_event.kind in ("zero_grad", "backward"):
            computed = (
                hook_event.computed and self._gap < hook_event.sample
            )  # no module was called for it
            made = computed or self._gaps.any_allocated(at, end)
            return [*pieces, ("forward" if made else None, at)]
        weights = self._new_weights(at, end)
        if weights is not None and before:
            pieces, at, rest = [*pieces, (None, at), ("load", weights[0])], weights[1], None
        elif weights is not None:
            at = weights[1]
        elif before and hook_event.kind in _CALLS:
            given = self._gaps.any_allocated(at, end)  # otherwise memory was only freed
            return [*pieces, ("input" if given else None, at)]
        birth = self._gaps.first_input(at, end)
        if not pieces:
            pieces = [(rest, start)]
        return pieces if birth is None else [*pieces, ("input", birth)]

    def _new_weights(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the range in which a new model's weights are allocated, or None.

        The model was not called before, or replaces one whose weights were freed.
        """
        found = self._gaps.weights(start, end)
        if found is None or not self._done:
            return found
        known = self._follows(*_CALLS) and self._next and self._next.key in self._called
        return None if known and not self._gaps.weights_died(start, found[0]) else found

    def _follows(self, *kinds: str) -> bool:
        """Return True if the phase that begins now is of one of these kinds.

        After zero_grad() the next phase counts.
        """
        return self._next is not None and self._next.kind in kinds

    def _leave_forward(self, running: DraftPhase, hook_event: HookEvent) -> None:
        """Close a forward or inference where the next phase begins.

        If another call follows, the next input or new weights end the phase earlier.
        """
        start, end, cut = self._position(self._left), self._position(hook_event.sample), None
        if hook_event.kind in _CALLS or (hook_event.kind == "zero_grad" and self._follows(*_CALLS)):
            cut = self._gaps.first_input(start, end)
            weights = self._new_weights(start, end)
            if weights is not None:
                cut = weights[0]
        if cut is None:
            last = self._before_seed(hook_event.sample)[0] if hook_event.kind == "backward" else end
            self._take_prefetched(running, start, last)
            self._close(hook_event.sample, shift=hook_event.kind == "backward")
            return
        place = cut, self._time_of(cut)
        self._close_at(running, *place)
        if cut == self._gaps.first_input(start, end):
            self._close_at(DraftPhase("input", *place), *self._place(hook_event.sample))
            self._gap = hook_event.sample
        else:
            self._fill(hook_event, place, self._place(hook_event.sample))

    def _take_prefetched(self, running: DraftPhase, start: int, end: int) -> None:
        """Cut the next batch out of a forward.

        The batch is fetched while the card computes this batch's forward.
        """
        batch = self._gaps.inputs(start, end)
        if batch is None:
            return
        first, last = ((at, self._time_of(at)) for at in batch)
        self._close_at(running, *first)
        self._open = DraftPhase("input", *first)
        if self._gaps.any_allocated(last[0], end):
            self._close_at(self._open, *last)
            self._open = replace(running, first=last[0], t0_ns=last[1])

    def _end(self, hook_event: HookEvent) -> None:
        if hook_event.kind == "optimizer" and hook_event.key == self._around:
            self._end_of_closure(hook_event)
        elif self._open is not None and hook_event.kind in _CALLS:
            self._left = hook_event.sample
        elif self._open is not None and self._open.name == hook_event.kind:
            self._close(hook_event.sample)

    def _end_of_closure(self, hook_event: HookEvent) -> None:
        if self._open is not None and self._open.name == "optimizer":  # without a closure call
            self._close(hook_event.sample)
        else:
            if self._open is not None:
                self._close(self._left)
            self._back_to_optimizer(hook_event.sample, goes_on=False)
        self._around = None

    def _back_to_optimizer(self, sample: int, *, goes_on: bool) -> None:
        """Add an optimizer phase from the last phase's end to a sample.

        What follows a backward inside an optimizer's step belongs to the optimizer.
        """
        key = self._around or 0
        self._open = DraftPhase("optimizer", *self._place(self._gap), key=key, goes_on=goes_on)
        self._close(sample)

    def _nest(self, hook_event: HookEvent) -> None:
        """Nest what the autograd engine calls in its backward.

        This is a recomputation, or an optimizer's step in a hook.
        """
        if hook_event.begins:
            self._nested.append(DraftPhase(hook_event.kind, *self._place(hook_event.sample)))
        elif self._nested and self._nested[-1].last < 0:
            self._nested[-1].last, self._nested[-1].t1_ns = self._place(hook_event.sample)

    def _finish(self, *, updated: bool, unchanged: bool) -> None:
        final = len(self._counter_samples) - 1
        if self._open is not None:
            self._close(final)
        elif not self._done and self._position(final) > 0:
            self._close_at(DraftPhase("load", *self._place(0)), *self._place(final))
            self._gap = final
        if self._done and self._done[-1].name == "backward" and not unchanged:
            start, end = self._place(self._gap), self._place(final)
            update = self._gaps.update(start[0], end[0])
            if update is not None:
                self._close_at(DraftPhase("optimizer", *start), update, self._time_of(update))
            elif updated:
                self._close_at(DraftPhase("optimizer", *start), *end)

    def _split_first_load(self) -> None:
        """Split the first forward without a module off from `load`.

        Later such forwards show what it allocates.
        """
        later = next((one for one in self._done[1:] if one.name == "forward"), None)
        names = [one.name for one in self._done if one.name != "zero_grad"]
        if later is None or later.key or names[:2] != ["load", "backward"]:
            return
        load = self._done[0]
        begins = self._gaps.begins_like(load.first, load.last, later.first, later.last)
        if begins is None:
            return
        place = begins, self._time_of(begins)
        self._done.insert(1, DraftPhase("forward", *place, last=load.last, t1_ns=load.t1_ns))
        load.last, load.t1_ns = place

    # --- placing

    def _position(self, sample: int) -> int:
        return int(self._counter_samples.position[sample])

    def _place(self, sample: int) -> Place:
        return self._position(sample), int(self._counter_samples.t_ns[sample])

    def _before_seed(self, sample: int) -> Place:
        position, t_ns = self._place(sample)
        events = self._events
        if (
            position
            and events.action[position - 1] == Action.ALLOC
            and events.size[position - 1] <= self._seed
        ):
            position -= 1
        return position, t_ns

    def _time_of(self, position: int) -> int:
        times = self._events.t_ns
        return int(times[min(position, len(times) - 1)]) if len(times) else 0

    def _close(self, sample: int, *, shift: bool = False) -> None:
        assert self._open is not None  # noqa: S101 - checked by the callers
        position, t_ns = self._before_seed(sample) if shift else self._place(sample)
        self._close_at(self._open, position, t_ns)
        self._gap = sample

    def _close_at(self, stretch: DraftPhase, position: int, t_ns: int) -> None:
        stretch.last, stretch.t1_ns = max(stretch.first, position), max(stretch.t0_ns, t_ns)
        self._done.append(stretch)
        self._open = None
        if stretch.name == "backward":
            self._gaps.learn(stretch.first, stretch.last)
