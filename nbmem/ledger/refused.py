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
    """Where requests failed behind which the same line, or convolution, asked for less at once.

    Nothing was freed in between, as there would be where an error unwinds a call. The last of
    several sizes that failed in a row may have been followed by a kernel without a workspace. What
    ended the recording was not passed over.
    """
    refusals = refusals_of(session, device)
    events = session.devices[device].events
    found: set[int] = set()
    row: list[int] = []

    def ends(*, got: bool) -> None:
        if got or len(set(events.size[row].tolist())) > 1:
            found.update(row)
        row.clear()

    for at in np.flatnonzero(np.isin(events.action, _ASKED)).tolist() if refusals else ():
        here = bool(row) and _goes_on(refusals[row[-1]], *events.stack[[row[-1], at]].tolist())
        if events.action[at] == Action.OOM:
            if not here:
                ends(got=False)
            row.append(at)
        elif row:
            less = bool(events.size[at] < events.size[row[-1]])
            ends(got=here and less and events.action[at] == Action.ALLOC)
    ends(got=False)
    if is_oom_text(session.error or ""):
        found.discard(max(refusals, default=-1))
    return frozenset(found)


def _goes_on(refusal: Refusal | None, failed: int, then: int) -> bool:
    """Whether the line of two stacks is the same; where none is known, a convolution's is."""
    if failed != then or failed >= 0:
        return failed == then
    place = (refusal.operator or refusal.layer or "") if refusal is not None else ""
    return bool(_CONVOLVES.search(place))
