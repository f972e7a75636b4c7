"""Distinguish the program's failed requests from those that torch retried.

torch itself retries: of a convolution's kernels it takes the first whose workspace fits
(try_configs and generate_and_filter_plans of Conv_v8.cpp). The program never sees the error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import Action, Events
from nbmem.core.session.oom import Refusal, is_oom_text

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.session import Session

_REQUESTS = (Action.ALLOC, Action.OOM, Action.FREE_REQUESTED)
"""A program's requests to the allocator; the other actions are the allocator's responses."""
_CONVOLUTION = re.compile(r"^ConvolutionBackward|\((Lazy)?Conv(Transpose)?\dd\)$")


@dataclass(frozen=True, slots=True)
class FailedRequests:
    """Allocation requests of one card that failed.

    Attributes:
        errors: Position of each in the history, and the observed error; None for early ones.
        retried: Positions after which a convolution at once requested less.
        has_more: Whether errors were observed that the history has dropped.
    """

    errors: dict[int, Refusal | None]
    retried: frozenset[int]
    has_more: bool

    @property
    def failed(self) -> list[int]:
        """Positions of failed requests that were not retried with less."""
        return [at for at in self.errors if at not in self.retried]

    @property
    def ran_out(self) -> bool:
        """True if a request failed that was not retried with less.

        A request that the history has dropped counts, too.
        """
        return bool(self.failed) or self.has_more


def failed_requests_of(session: Session, device: int) -> FailedRequests:
    """Return the failed requests of a card, by its index in the session."""
    trace = session.devices[device]
    rows = np.flatnonzero(trace.events.action == Action.OOM).tolist()
    observed = [refusal for refusal in session.refusals if refusal.device == trace.info.index]
    known = observed[-len(rows) :]
    errors = dict(zip(rows, [*[None] * (len(rows) - len(known)), *known], strict=False))
    return FailedRequests(
        errors, _retried(session, trace.events, errors), len(observed) > len(rows)
    )


def _retried(session: Session, events: Events, errors: dict[int, Refusal | None]) -> frozenset[int]:
    """Find failed requests that a convolution at once retried with less.

    The convolution's result was allocated just before. Nothing was freed in between, as it would be
    if an error unwound a call. The smaller block was freed at once.

    After several sizes failed in a row, a kernel without a workspace may follow. Such failures
    count if their layer or operator is known to be a convolution. A program that calls one
    convolution with smaller and smaller sizes looks the same. A request that ended the recording
    was not retried.
    """
    requests = (
        np.flatnonzero(np.isin(events.action, _REQUESTS)) if errors else np.zeros(0, np.int64)
    )
    found: set[int] = set()
    for first, behind in _runs_of_failures(events, requests, errors):
        row = requests[first:behind].tolist()
        if not first or not _served(events, int(requests[first - 1])):
            continue
        sizes = set(events.size[row].tolist())
        if _got_workspace(events, errors, row[-1], requests[behind : behind + 2].tolist()) or (
            len(sizes) > 1 and _is_convolution(errors[row[0]])
        ):
            found.update(row)
    if is_oom_text(session.error or ""):
        found.discard(max(errors, default=-1))
    return frozenset(found)


def _runs_of_failures(
    events: Events, requests: Ints, errors: dict[int, Refusal | None]
) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive failed requests from one place.

    Each range is the index of its first request in `requests`, and the one after its last.
    """
    failures = np.searchsorted(requests, [*errors]).tolist()
    at = 0
    while at < len(failures):
        first, count = failures[at], 1
        refusal = errors[int(requests[first])]
        while failures[at + count : at + count + 1] == [first + count] and _same_place(
            events, refusal, int(requests[first + count - 1]), int(requests[first + count])
        ):
            count += 1
        yield first, first + count
        at += count


def _served(events: Events, at: int) -> bool:
    return at >= 0 and bool(events.action[at] == Action.ALLOC)


def _got_workspace(
    events: Events, errors: dict[int, Refusal | None], failed: int, then: list[int]
) -> bool:
    """Return True if less was served at the same place and freed at once.

    This is how a workspace behaves.
    """
    if len(then) < 2:
        return False
    got, freed = then
    return (
        _served(events, got)
        and bool(events.size[got] < events.size[failed])
        and bool(events.action[freed] == Action.FREE_REQUESTED)
        and bool(events.addr[freed] == events.addr[got])
        and _same_place(events, errors[failed], failed, got)
    )


def _same_place(events: Events, refusal: Refusal | None, one: int, then: int) -> bool:
    """Return True if two events have the same stack.

    If both have none, the failed operator or layer must be a convolution.
    """
    failed, next_ = events.stack[[one, then]].tolist()
    return failed == next_ if failed != next_ or failed >= 0 else _is_convolution(refusal)


def _is_convolution(refusal: Refusal | None) -> bool:
    place = (refusal.operator or refusal.layer or "") if refusal is not None else ""
    return bool(_CONVOLUTION.search(place))
