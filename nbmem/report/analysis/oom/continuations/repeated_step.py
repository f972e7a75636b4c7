"""Find how a step goes on in an earlier step of the recording.

The requests before the failed one are compared with those before each request of an earlier step.
The longest equal run shows where that step was at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.allocator.rounding import round_sizes
from nbmem.core.session.categories import Category
from nbmem.report.analysis.oom.continuations.continuation import (
    LIVE,
    NEVER,
    ONCE,
    Continuation,
    FutureBlock,
    grows_with_batch,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.analysis.oom.failed_request import FailedRequest

MAX_REQUESTS = 100_000
"""Requests before the failed one that are compared."""
MAX_EQUAL = 10_000
"""Equal requests in a row that are counted."""
MIN_BETWEEN = 2
"""Equal requests in a row that show the place, between the phases of a step."""
MAX_BLOCKS = 20_000
MAX_STEPS = 100
MAX_DECODED = 150_000
"""Requests and frees of the tokens that generate() still makes; each is a step."""


class Requests(NamedTuple):
    """Requests and frees up to the failed one, which is the last.

    Attributes:
        row: The allocation; of the failed request, the number of allocations before it.
        alloc: Whether it is a request, else a free.
        size: Requested bytes; of a free, how many requests ago its block was allocated.
        code: A number that equal rows share. Requests are equal if their rounded sizes are. Frees
            are equal if their blocks have the same age, or if both blocks are of earlier steps.
        step: Number of the step; -1 before the first and without steps.
        phase: Name of the phase that it is in or follows; empty before the first.
        phase_index: Index of that phase.
        number: How many earlier requests of its phase there are. What is allocated once for all
            steps does not count.
    """

    row: Ints
    alloc: Mask
    size: Ints
    code: Ints
    step: Ints
    phase: NDArray[np.str_]
    phase_index: Ints
    number: Ints


class SamePlace(NamedTuple):
    """The request of an earlier step at the same place.

    Attributes:
        before: Its index.
        equal: How many requests before it are equal to those before the failed one.
    """

    before: int
    equal: int


def repeated_step(case: FailedRequest) -> Continuation | None:
    """Return what follows if the step goes on as an earlier one did.

    None if no earlier step was at the same place.
    """
    requests = requests_before(case)
    last = len(requests.row) - 1
    if requests.step[last] < 0:  # loading a checkpoint repeats requests, too, but is no step
        return None
    if _waits_for_backward(case, requests):
        return None
    since = last - int(np.searchsorted(requests.step, requests.step[last]))
    if case.refusal is not None and case.refusal.evaluating:  # a training step is no evaluation
        trained = np.unique(requests.step[requests.phase == "backward"])
        requests = requests._replace(
            step=np.where(np.isin(requests.step, trained), -1, requests.step)
        )
    for code in (requests.code, np.where(requests.alloc, 0, requests.code)):
        place = _place_before(requests, code, since)
        if place is not None:
            call = None if case.refusal is None else case.refusal.call
            left = None if call is None else call.tokens_left
            period = last - place.before
            steps = None if left is None else max(2, min(left + 1, MAX_DECODED // period))
            return replace(continued(case, requests, place, since, steps), calls_left=left)
    return None


def _waits_for_backward(case: FailedRequest, requests: Requests) -> bool:
    """Return whether a training's first backward has not come yet.

    Then the forwards before belong to one step: what they have saved does not grow with each.
    """
    if requests.phase[-1] != "forward" or (requests.phase == "backward").any():
        return False
    return bool(case.card_ledger.session.facts.get("optimizers"))


def requests_before(case: FailedRequest) -> Requests:
    """List the requests and frees up to the failed request."""
    a, phases = case.card_ledger.allocations, case.card_ledger.phases
    made = int(np.searchsorted(a.allocated_at, case.index))
    rows = np.arange(made)
    frees = rows[(a.freed[:made] >= 0) & (a.freed[:made] < case.index)]
    allocs = rows[a.allocated_at[:made] >= 0]
    at = np.concatenate([a.allocated_at[allocs], a.freed[frees], [case.index]])
    row = np.concatenate([allocs, frees, [made]])
    alloc = np.concatenate([np.ones(len(allocs), bool), np.zeros(len(frees), bool), [True]])
    order = np.argsort(at, kind="stable")[-MAX_REQUESTS:]
    at, row, alloc = at[order], row[order], alloc[order]
    sizes = np.append(a.requested[:made], case.size)[row]
    lasting = np.isin(case.card_ledger.category[:made], ONCE)
    age = np.searchsorted(a.allocated_at[:made][~lasting], at) - _numbers(lasting)[row]
    rounded = round_sizes(sizes, case.settings.roundup_power2_divisions)
    passes = np.array([*phases.passes, -1], np.int64)
    begins = np.array([phases.bounds(index)[0] for index in range(len(phases.spans))], np.int64)
    phase = np.searchsorted(begins, at, "right") - 1  # between two phases the first one counts
    requested = np.append(a.allocated_at[:made], case.index)[row]
    own_phase = np.searchsorted(begins, requested, "right") - 1
    step = passes[phase]
    older = ~alloc & (passes[own_phase] < step)
    count = np.cumsum(alloc & ~np.append(lasting, [False])[row])
    return Requests(
        row=row,
        alloc=alloc,
        size=np.where(alloc, sizes, age),
        code=2 * np.where(alloc, rounded, np.where(older, -1, age)) + alloc,
        step=step,
        phase=np.where(phase >= 0, phases.names[phase], ""),
        phase_index=phase,
        number=count - count[np.searchsorted(phase, phase)],
    )


def _numbers(lasting: Mask) -> Ints:
    """Number the allocations that each step makes anew, in order.

    The last number is the failed request's. An allocation that is made once, for all steps, has
    the number of the next one.

    Args:
        lasting: Mask of the allocations that are made once.
    """
    return np.concatenate([[0], np.cumsum(~lasting)]).astype(np.int64)


def _place_before(requests: Requests, code: Ints, since: int) -> SamePlace | None:
    """Return the latest request that an earlier step made at this place.

    Args:
        requests: The requests.
        code: A number that equal requests share (see `Requests.code`).
        since: Requests since the step began.
    """
    last = len(code) - 1
    same = np.flatnonzero(code[:last] == code[last])
    places = same[(requests.step[same] >= 0) & (requests.step[same] < requests.step[last])]
    places = places[requests.phase[places] == requests.phase[last]]
    # Equal layers request equal sizes. The number within the phase distinguishes them.
    equal, off = count_equal(code, places), np.abs(requests.number[places] - requests.number[last])
    # In the second step, blocks of the first are freed in between, so not every row is equal.
    enough = equal >= np.minimum(np.minimum(since // 2, last - places), MAX_EQUAL)
    first = requests.step[last] == requests.step[requests.step >= 0][0]
    if not (first or enough.any()):  # it may precede a phase that is not known yet
        places = same[
            (requests.step[same] >= 0) & (requests.phase_index[same] != requests.phase_index[last])
        ]
        if requests.phase[last] == "inference":  # a first evaluation is no part of a training step
            places = places[requests.phase[places] == "inference"]
        equal = count_equal(np.where(requests.alloc, code, 0), places)
        off = np.zeros_like(places)
        enough = equal >= MIN_BETWEEN
    places, equal, off = places[enough], equal[enough], off[enough]
    if not len(places):
        return None
    best = np.lexsort((places, equal, -off))[-1]
    return SamePlace(int(places[best]), int(equal[best]))


def count_equal(code: Ints, places: Ints) -> Ints:
    """Count the equal requests before each place and before the last one."""
    last, equal = len(code) - 1, np.zeros(len(places), np.int64)
    left = np.arange(len(places))
    for back in range(1, MAX_EQUAL + 1):
        left = left[places[left] >= back]
        left = left[code[places[left] - back] == code[last - back]]
        if not len(left):
            break
        equal[left] = back
    return equal


def continued(
    case: FailedRequest, requests: Requests, place: SamePlace, since: int, steps: int | None = None
) -> Continuation:
    """Repeat the requests since the earlier place, `steps` times."""
    period = len(requests.row) - 1 - place.before
    card_ledger, a = case.card_ledger, case.card_ledger.allocations
    made, first = int(requests.row[-1]), len(requests.row) - 1 - period
    live = a.freed[:made] >= case.index
    once = np.isin(card_ledger.category[:made], ONCE)
    number = _numbers(once)
    saved = (card_ledger.category == Category.ACTIVATIONS)[:made]
    of_batch = grows_with_batch(card_ledger)
    before = _rows_before(requests, place)
    grown = {row for row, old in before.items() if live[row] and live[old] and not once[row]}
    extended = _extended_blocks(requests, place, live & ~once)
    steps = steps or max(2, min(MAX_STEPS, MAX_BLOCKS // period))
    sizes = _later_sizes(requests, place, since, of_batch)

    def block(row: int, requested_at: float, size: int, step: int) -> FutureBlock:
        kept, scales = bool(saved[row]), bool(of_batch[row])
        kind = Category(int(card_ledger.category[row])) if row < made else None
        return FutureBlock(
            requested_at, NEVER, size, int(a.stream[row]), row, kept, scales, step, kind
        )

    # By their numbers, from which the ages of frees are counted. What is made once has none.
    blocks = {
        -1 - row if once[row] else int(number[row]): block(row, LIVE, int(a.requested[row]), 0)
        for row in np.flatnonzero(live).tolist()
    }
    newest: dict[int, int] = {}
    count = int(number[-1])
    for at in range(steps * period):
        source = first + at % period
        row = int(requests.row[source])
        if once[row]:
            continue
        if requests.alloc[source]:
            new, count = count, count + 1
            blocks[new] = block(row, at, sizes(at), (at + since) // period)
            # The name or gradient is assigned anew.
            old, freed_at = newest.get(row, int(number[row])), at + 0.5
            newest[row] = new
            if row in before or not live[row]:
                continue
        else:
            old, freed_at = count - int(requests.size[source]), float(at)
        if old in blocks and blocks[old].freed_at == NEVER:
            blocks[old] = blocks[old]._replace(freed_at=freed_at)
    return Continuation(
        blocks=tuple(blocks.values()),
        period=period,
        steps=steps,
        since=since,
        grown=tuple(sorted({*extended, *_generations(requests, period, grown, live & ~once)})),
        slope=int(a.block[sorted(grown)].sum()) + sum(extended.values()),
    )


def _rows_before(requests: Requests, place: SamePlace) -> dict[int, int]:
    """Map each allocation of the last step to that of the step before it."""
    last = len(requests.row) - 1
    period = last - place.before
    first = max(place.before, last - place.equal, period)
    one, two = slice(first, last), slice(first - period, last - period)
    both = requests.alloc[one] & requests.alloc[two]
    return dict(
        zip(requests.row[one][both].tolist(), requests.row[two][both].tolist(), strict=True)
    )


def _extended_blocks(requests: Requests, place: SamePlace, live: Mask) -> dict[int, int]:
    """Map live allocations to the bytes by which each step extends them.

    Three steps must extend it by the same bytes, as `results = torch.cat([results, new])` does.
    """
    last = len(requests.row) - 1
    period = last - place.before
    first = max(place.before, last - place.equal, 2 * period)
    found: dict[int, int] = {}
    for at in range(first, last):
        rows = requests.row[[at, at - period, at - 2 * period]]
        if requests.alloc[[at, at - period, at - 2 * period]].all() and live[rows[0]]:
            one, two, three = requests.size[[at, at - period, at - 2 * period]].tolist()
            if one > two and one - two == two - three and not live[rows[1]]:
                found[int(rows[0])] = one - two
    return found


def _generations(requests: Requests, period: int, grown: set[int], live: Mask) -> Iterator[int]:
    """Yield the live allocations of all steps whose latest one grows."""
    place = {row: at for at, row in enumerate(requests.row.tolist()) if requests.alloc[at]}
    for row in grown:
        at = place[row]
        while at >= 0 and requests.alloc[at] and live[requests.row[at]]:
            yield int(requests.row[at])
            at -= period


def _later_sizes(
    requests: Requests, place: SamePlace, since: int, of_batch: Mask
) -> Callable[[int], int]:
    """Return a function from a later position to the bytes requested there.

    A size that grew twice by the same bytes continues to do so. Other sizes that changed are scaled
    by the ratio of this step's sizes to the earlier step's.
    """
    last = len(requests.row) - 1
    period = last - place.before
    earlier = np.arange(last + 1) - period
    known = requests.alloc & (earlier >= max(0, place.before - place.equal))
    change = np.where(known, requests.size - requests.size[earlier], 0)
    now = slice(last - since, last + 1)
    size = int(requests.size[now][change[now] != 0].sum())
    ratio = size / max(1, size - int(change[now].sum())) if size else 1.0

    def later(at: int) -> int:
        source = place.before + at % period
        size, more, row = int(requests.size[source]), int(change[source]), int(requests.row[source])
        if more and source >= period and change[source - period] == more:
            return size + more * (1 + at // period)
        varies = more if known[source] else row < len(of_batch) and of_batch[row]
        return max(1, int(size * ratio)) if varies else size

    return later
