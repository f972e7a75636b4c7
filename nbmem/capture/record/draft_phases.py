"""Phases under construction, and how neighbouring ones refine them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.capture.record.hook_events import HookEvent

_UPDATES = ("backward", "optimizer")


@dataclass(slots=True)
class DraftPhase:
    """A phase under construction: a range of the main card's events."""

    name: str
    first: int
    t0_ns: int
    last: int = -1
    t1_ns: int = -1
    key: int = 0
    step: int | None = None
    parent: int | None = None
    looked_at: bool = False  # a forward whose result no backward has used
    goes_on: bool = False  # an optimizer's step that calls a closure and has not ended


def on_card(
    hook_events: Sequence[HookEvent], position: Callable[[int], int]
) -> Sequence[HookEvent]:
    """Drop hook events that were over before the card held anything.

    The host ran them. They are calls, and passes whose backward has ended: a backward on the card
    allocates memory, zero_grad() may allocate none.

    Args:
        hook_events: The hook events, in order.
        position: Returns the position of a counter sample in the card's events.
    """
    calls = ("forward", "inference")
    over = [i for i, t in enumerate(hook_events) if t.kind in _UPDATES and not t.begins]
    over = [i for i in over if not position(hook_events[i].sample)]
    if any(hook_events[i].kind == "backward" for i in over):
        hook_events = hook_events[over[-1] + 1 :]
    numbered = enumerate(hook_events)
    first = next((i for i, t in numbered if t.kind not in calls or position(t.sample)), None)
    if not first:
        return hook_events
    return hook_events[first - hook_events[first - 1].begins :]


def following(hook_events: Sequence[HookEvent]) -> list[HookEvent | None]:
    """Return for each hook event the phase that begins there or next.

    Events of zero_grad() and of recomputations are skipped; None if nothing follows.
    """
    found: list[HookEvent | None] = []
    begun = None
    for hook_event in reversed(hook_events):
        if hook_event.begins and hook_event.kind not in ("zero_grad", "recompute"):
            begun = hook_event
        found.append(begun)
    return found[::-1]


def joined(phases: Sequence[DraftPhase]) -> list[DraftPhase]:
    """Merge adjacent forwards of a step into one.

    An RNN's calls in a loop are an example.
    """
    found: list[DraftPhase] = []
    for phase in phases:
        last = found[-1] if found else None
        if (
            last is not None
            and phase.name == last.name == "forward"
            and phase.step == last.step
            and phase.first == last.last
        ):
            last.last, last.t1_ns = phase.last, phase.t1_ns
        else:
            found.append(phase)
    return found


def with_nested(phases: Sequence[DraftPhase], nested: Sequence[DraftPhase]) -> list[DraftPhase]:
    """Append the phases that ran inside a backward, with its step."""
    found = list(phases)
    backwards = [i for i, phase in enumerate(phases) if phase.name == "backward"]
    ends = [phases[i].last for i in backwards]  # ascending, as they began
    for inner in nested:
        at = bisect_left(ends, inner.first)
        if inner.last < 0 or at == len(backwards):
            continue
        outer = phases[backwards[at]]
        if outer.first <= inner.first:
            found.append(replace(inner, parent=backwards[at], step=outer.step))
    return found
