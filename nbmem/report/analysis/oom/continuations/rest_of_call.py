"""Find how a first call without gradients goes on, by its equal blocks.

No earlier call was recorded. A model that is a list of equal blocks goes on as the blocks before
the failed one did. Behind them come a few layers, whose result is known by their width. Where
transformers' generate() made the call, its further tokens extend the KV cache.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.oom.continuations.continuation import (
    LIVE,
    NEVER,
    Continuation,
    FutureBlock,
    cached_rows,
)
from nbmem.report.analysis.oom.continuations.repeated_step import (
    Requests,
    SamePlace,
    continued,
    count_equal,
    requests_before,
)

if TYPE_CHECKING:
    from nbmem.core.session.oom import RunningCall
    from nbmem.report.analysis.oom.failed_request import FailedRequest

MIN_BEFORE = 2
"""Blocks before the failed one without which an equal block is not recognized."""
LONGEST = 4_096
"""Requests and frees of one block."""
OFF = 1.25
"""Blocks by which the equal requests may miss the number of blocks that have run."""
MAX_DECODED = 8_000
"""Requests of further tokens that are simulated; of more tokens, several are taken together."""
_FLOAT32 = 4
_LOSS_COPIES = 2
"""Copies of the scores in float32 that a loss of transformers makes: one, and its logarithms."""


def rest_of_call(case: FailedRequest, phase: str | None) -> Continuation | None:
    """Return what follows up to the end of the call, or None.

    None if it is no first call without gradients, if it is no list of equal blocks, or if the
    requests before the failed one do not show how long a block is.
    """
    call = None if case.refusal is None else case.refusal.call
    if phase != "inference" or call is None or call.block < MIN_BEFORE:
        return None
    requests = requests_before(case)
    place = _block_before(requests, call.block)
    if place is None:
        return None
    then = continued(case, requests, place, 0, call.blocks - call.block)
    return _CallEnd(case, call, then).continuation()


def _block_before(requests: Requests, block: int) -> SamePlace | None:
    """Return the place in the block before, or None.

    The requests up to the failed one are equal to those one block earlier, and so many of them that
    they go back to the first blocks of this call.
    """
    last = len(requests.row) - 1
    begin = int(np.searchsorted(requests.phase_index, requests.phase_index[last]))
    longest = min(LONGEST, (last + 1 - begin) // MIN_BEFORE)
    same = np.flatnonzero(requests.code[:last] == requests.code[last])
    places = same[same >= max(last - longest, begin)]
    equal = count_equal(requests.code, places)
    for before, count in zip(places[::-1].tolist(), equal[::-1].tolist(), strict=True):
        period = last - before
        if count >= period - 1 and abs(count / period - (block - 0.5)) <= OFF:
            return SamePlace(before, count)
    return None


class _CallEnd:
    """Builds the blocks behind those of the layers.

    Args:
        case: The failed request.
        call: What is known of its call.
        then: The rest of the model's blocks.
    """

    def __init__(self, case: FailedRequest, call: RunningCall, then: Continuation) -> None:
        self.case, self.call, self.then = case, call, then
        self.blocks = list(then.blocks)
        self.at = then.steps * then.period
        self.cache = frozenset(cached_rows(case.card_ledger, case.index).tolist())

    def continuation(self) -> Continuation:
        """Return the rest of the call, and the tokens that follow it."""
        left, ends = self.call.tokens_left, "the rest of the call"
        if self.call.result:
            self._result()
        if left is not None:
            self._free_all_but_cache()
            self._decode(left)
            ends = f"{ends} and the {left:,} tokens that generate() makes after it"
        elif self.cache and not self.call.unread:
            ends = f"{ends}, without the tokens of later calls"
        return replace(
            self.then,
            blocks=tuple(self.blocks),
            slope=0,
            estimated=True,
            ends=f"{ends}, each layer as those before it",
        )

    def _put(self, size: int, freed_at: float = NEVER, *, row: int = -1) -> None:
        stream, at = self.case.stream, float(self.at)
        self.blocks.append(FutureBlock(at, freed_at, max(size, 1), stream, row, of_batch=True))
        self.at += 1

    def _result(self) -> None:
        """Allocate the scores, and what a loss of them needs."""
        count, each = self.call.result, self.call.result_bytes
        end = self.at + 4.0
        self._put(count * each)
        if self.call.labels:
            for _ in range(_LOSS_COPIES):
                self._put(count * max(each, _FLOAT32), end)
        self.at += 4

    def _free_all_but_cache(self) -> None:
        """Free what the call has made and its caller does not keep."""
        rows = self.case.card_ledger.live(self.case.index)
        category = self.case.card_ledger.category[rows]
        passing = np.isin(category, (Category.TEMPORARIES, Category.ACTIVATIONS))
        gone = {*rows[passing & self.case.of_this_step(rows)].tolist()} - self.cache
        for at, block in enumerate(self.blocks):
            made = block.requested_at != LIVE and block.row not in self.cache
            if block.freed_at == NEVER and (made or block.row in gone):
                self.blocks[at] = block._replace(freed_at=float(self.at))
        self.at += 1

    def _decode(self, left: int) -> None:
        """Extend each layer's keys and values by the tokens that are left."""
        cached = [
            at
            for at, block in enumerate(self.blocks)
            if block.row in self.cache and block.freed_at == NEVER
        ]
        if not cached or not self.call.cached:
            return
        stride = max(1, math.ceil(left * len(cached) / MAX_DECODED))
        first = {at: self.blocks[at].size for at in cached}
        latest = dict(zip(cached, cached, strict=True))
        for tokens in (*range(1, left, stride), left):
            repeated = self.call.heads if self.call.heads > 1 else 0
            for at in cached:
                size = first[at] * (self.call.cached + tokens) // self.call.cached
                old, latest[at] = latest[at], len(self.blocks)
                self._put(size, row=self.blocks[at].row)
                self.blocks[old] = self.blocks[old]._replace(freed_at=self.at - 0.5)
            for _ in range(2 if repeated else 0):  # one layer's keys and values, for each head
                self._put(repeated * size, self.at + 2.5)
