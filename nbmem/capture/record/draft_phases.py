"""A phase in the making, and what its neighbours say of it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.capture.record.hook_events import Turn

_UPDATES = ("backward", "optimizer")


@dataclass(slots=True)
class DraftPhase:
    """A phase in the making: positions in the main card's events, and times."""

    name: str
    first: int
    t0_ns: int
    last: int = -1
    t1_ns: int = -1
    key: int = 0
    step: int | None = None
    parent: int | None = None
    looked_at: bool = False  # a forward whose result no backward has asked for
    goes_on: bool = False  # an optimizer's step that calls a closure and is not over yet


def on_card(turns: Sequence[Turn], position: Callable[[int], int]) -> Sequence[Turn]:
    """Leave out what was over before the card held anything: the host ran it.

    Calls, and passes whose backward is over: one on the card takes memory, zero_grad() may take
    none.

    Args:
        turns: What the hooks told, in order.
        position: Where a mark lies in the card's events.
    """
    calls = ("forward", "inference")
    over = [i for i, t in enumerate(turns) if t.kind in _UPDATES and not t.begins]
    over = [i for i in over if not position(turns[i].mark)]
    if any(turns[i].kind == "backward" for i in over):
        turns = turns[over[-1] + 1 :]
    told = enumerate(turns)
    first = next((i for i, t in told if t.kind not in calls or position(t.mark)), None)
    if not first:
        return turns
    return turns[first - turns[first - 1].begins :]


def following(turns: Sequence[Turn]) -> list[Turn | None]:
    """For each turn what begins there or, behind zero_grad(), next."""
    found: list[Turn | None] = []
    begun = None
    for turn in reversed(turns):
        if turn.begins and turn.kind not in ("zero_grad", "recompute"):
            begun = turn
        found.append(begun)
    return found[::-1]


def joined(phases: Sequence[DraftPhase]) -> list[DraftPhase]:
    """Calls of a step that follow each other at once are one forward, as an RNN's in a loop."""
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
    """The phases, and behind them what ran inside one of the backwards, with its step."""
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
