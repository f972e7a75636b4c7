"""Which failed requests a program had to do without, and which it passed over at once.

torch itself asks again: of a convolution's kernels it takes the first whose workspace fits
(try_configs and generate_and_filter_plans of Conv_v8.cpp), and nobody sees the error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.events import Action
from nbmem.core.oom import is_oom_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.core.events import Events
    from nbmem.core.oom import Refusal
    from nbmem.core.session import Session

_ASKED = (Action.ALLOC, Action.OOM, Action.FREE_REQUESTED)
"""What a program asks of the allocator; the rest is what the allocator does about it."""
_CONVOLVES = re.compile(r"^ConvolutionBackward|\((Lazy)?Conv(Transpose)?\dd\)$")


def refusals_of(session: Session, device: int) -> dict[int, Refusal | None]:
    """Each failed request's place in the history, and how it was seen; early ones by nobody."""
    rows = np.flatnonzero(session.devices[device].events.action == Action.OOM).tolist()
    index = session.devices[device].info.index
    seen = [refusal for refusal in session.refusals if refusal.device == index][-len(rows) :]
    return dict(zip(rows, [*[None] * (len(rows) - len(seen)), *seen], strict=False))


def failed(session: Session, device: int) -> list[int]:
    """Where requests failed that the program had to do without."""
    went_on = passed_over(session, device)
    return [at for at in refusals_of(session, device) if at not in went_on]


def ran_out(session: Session, device: int) -> bool:
    """Whether there was such a request; one that the history lost counts, too."""
    index = session.devices[device].info.index
    seen = sum(refusal.device == index for refusal in session.refusals)
    return bool(failed(session, device)) or seen > len(refusals_of(session, device))


def passed_over(session: Session, device: int) -> frozenset[int]:
    """Where requests failed behind which the same convolution asked for less at once.

    Its result was there, nothing was freed in between, as there would be where an error unwinds a
    call, and what it got was freed at once. The last of several sizes that failed in a row may have
    been followed by a kernel without a workspace, where the place is known for a convolution: one
    that a program calls with less and less, on nothing new, looks the same. What ended the
    recording was not passed over.
    """
    refusals = refusals_of(session, device)
    events = session.devices[device].events
    asked = np.flatnonzero(np.isin(events.action, _ASKED)).tolist() if refusals else []
    found: set[int] = set()
    for first, behind in _rows(events, asked, refusals):
        row = asked[first:behind]
        result = asked[first - 1] if first else -1
        if not _served(events, result):
            continue
        sizes = set(events.size[row].tolist())
        if _works(events, refusals, row[-1], asked[behind : behind + 2]) or (
            len(sizes) > 1 and _convolves(refusals[row[0]])
        ):
            found.update(row)
    if is_oom_text(session.error or ""):
        found.discard(max(refusals, default=-1))
    return frozenset(found)


def _rows(
    events: Events, asked: list[int], refusals: dict[int, Refusal | None]
) -> Iterator[tuple[int, int]]:
    """Requests that failed one behind the other, at one place: from which in `asked` to which."""
    first = 0
    while first < len(asked):
        behind = first + 1
        if events.action[asked[first]] == Action.OOM:
            while (
                behind < len(asked)
                and events.action[asked[behind]] == Action.OOM
                and _goes_on(events, refusals[asked[first]], asked[behind - 1], asked[behind])
            ):
                behind += 1
            yield first, behind
        first = behind


def _served(events: Events, at: int) -> bool:
    return at >= 0 and bool(events.action[at] == Action.ALLOC)


def _works(
    events: Events, refusals: dict[int, Refusal | None], failed: int, then: list[int]
) -> bool:
    """Whether less was served to the same place, and freed at once, as a work area is."""
    if len(then) < 2:
        return False
    got, freed = then
    return (
        _served(events, got)
        and bool(events.size[got] < events.size[failed])
        and bool(events.action[freed] == Action.FREE_REQUESTED)
        and bool(events.addr[freed] == events.addr[got])
        and _goes_on(events, refusals[failed], failed, got)
    )


def _goes_on(events: Events, refusal: Refusal | None, one: int, then: int) -> bool:
    """Whether the line of two stacks is the same; where none is known, a convolution's is."""
    failed, next_ = events.stack[[one, then]].tolist()
    return failed == next_ if failed != next_ or failed >= 0 else _convolves(refusal)


def _convolves(refusal: Refusal | None) -> bool:
    place = (refusal.operator or refusal.layer or "") if refusal is not None else ""
    return bool(_CONVOLVES.search(place))
