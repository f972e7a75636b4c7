"""Figures of one failed request: what the allocator had and lacked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.undo_events import tiled, undo_with_notes
from nbmem.allocator.rounding import LARGE_STEP, SMALL_LIMIT, segment_bytes
from nbmem.core.session.events import GIVES_BACK, BlockState, Layout
from nbmem.core.session.oom import Refusal, is_oom_text, read_message
from nbmem.core.units import GIB
from nbmem.report.analysis.what_if import recorded_settings

if TYPE_CHECKING:
    from nbmem.allocator.settings import AllocatorSettings
    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.ledger.card_ledger import CardLedger

_ROUNDED = 0.005
"""Part of a GiB by which the limit in torch's message may be off, as it has two decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """One failed request and the allocator's figures at that moment.

    Attributes:
        card_ledger: The card's ledger.
        index: Its OOM event; the position at which it failed.
        refusal: The observed error, or None.
        caught: Whether the program continued.
        settings: The allocator's settings.
        size: Bytes of the block.
        stream: The stream of the request.
        wanted: Bytes requested from the driver.
        free: Bytes free on the card, according to torch's history.
        limit: Bytes that may be reserved; None without a memory fraction.
        capacity: Bytes that this process could have reserved at that moment, at least.
        reserved: Held from the driver then.
        given_back: Cached bytes that torch released first.
    """

    card_ledger: CardLedger
    index: int
    refusal: Refusal | None
    caught: bool
    settings: AllocatorSettings
    size: int
    stream: int
    wanted: int
    free: int
    limit: int | None
    capacity: int
    reserved: int
    given_back: int

    @property
    def limited(self) -> bool:
        """True if the card had room, so that a memory limit is the cause."""
        return self.free >= self.wanted + LARGE_STEP

    @property
    def missing(self) -> int:
        """Bytes that the driver had too few."""
        return max(0, self.reserved + self.wanted - self.capacity)

    def of_this_step(self, rows: Ints) -> Mask:
        """Return a mask of allocations made since the failing step began.

        Before any step, all of them count.
        """
        card_ledger = self.card_ledger
        steps = np.array([*(max(0, step) for step in card_ledger.phases.passes), -1], np.int64)
        phase = int(card_ledger.phases.of(np.array([self.index], np.int64))[0])
        now: Mask = steps[card_ledger.born_in[rows]] >= steps[phase]
        return now


def cases(card_ledger: CardLedger) -> list[FailedRequest]:
    """List every failed request that the program went without, in order."""
    ended = _index_of_end(card_ledger)
    return [
        _case(card_ledger, index, caught=index != ended) for index in card_ledger.refused.failed
    ]


def request_that_ended(card_ledger: CardLedger) -> FailedRequest | None:
    """Return the failed request that ended the program, or None."""
    index = _index_of_end(card_ledger)
    return None if index is None else _case(card_ledger, index, caught=False)


def _index_of_end(card_ledger: CardLedger) -> int | None:
    refused = card_ledger.refused
    last = max(refused.errors, default=None)
    fatal = is_oom_text(card_ledger.session.error or "") and last in refused.failed
    return last if fatal else None


def _case(card_ledger: CardLedger, index: int, *, caught: bool) -> FailedRequest:
    refusal = card_ledger.refused.errors[index]
    events, settings = card_ledger.trace.events, recorded_settings(card_ledger.trace)
    size, free = int(events.size[index]), int(events.addr[index])
    reserved = int(card_ledger.reserved[index])
    begun = index
    while begun and events.action[begun - 1] in GIVES_BACK:
        begun -= 1
    wanted = segment_bytes(size, settings.large_segment_size)
    if refusal is not None:
        wanted = refusal.wanted
    limit, least = _limit(card_ledger, refusal, caught=caught)
    capacity = reserved + free
    if least is not None:
        capacity = min(capacity, least)
    elif free >= wanted + LARGE_STEP:  # an unreported limit: at least what was reserved
        capacity = int(card_ledger.reserved[: index + 1].max())
    return FailedRequest(
        card_ledger=card_ledger,
        index=index,
        refusal=refusal,
        caught=caught,
        settings=settings,
        size=size,
        stream=int(events.stream[index]),
        wanted=wanted,
        free=free,
        limit=limit,
        capacity=max(capacity, reserved),
        reserved=reserved,
        given_back=int(events.size[begun:index].sum()),
    )


def _limit(
    card_ledger: CardLedger, refusal: Refusal | None, *, caught: bool
) -> tuple[int | None, int | None]:
    """Return the memory limit and the least that it can be, or None."""
    if refusal is not None:
        return refusal.limit, refusal.limit
    message = None if caught else read_message(card_ledger.session.error or "")
    if message is None or message.limit is None:
        return None, None
    return message.limit, message.limit - int(_ROUNDED * GIB)


def layout(case: FailedRequest) -> Layout:
    """Reconstruct every segment and block at the failed request."""
    card_ledger, index = case.card_ledger, case.index
    after, _ = undo_with_notes(
        card_ledger.trace.end, card_ledger.trace.events[index:], case.settings
    )
    a = card_ledger.allocations
    rows = np.flatnonzero((a.allocated_at < index) & (a.completed_at >= index))
    rows = rows[np.argsort(a.addr[rows], kind="stable")]
    state = np.where(a.freed[rows] < index, BlockState.PENDING, BlockState.ALLOCATED)
    segments = after.segments
    rest = (a.requested[rows], state.astype(np.int64), a.stack[rows])
    blocks = tiled(segments.addr, segments.size, a.addr[rows], a.block[rows], rest)
    return Layout(segments=segments, blocks=blocks)


def free_in_private_pools(at: Layout) -> int:
    """Return the free bytes of private pools, for CUDA graphs alone."""
    free = at.blocks[at.blocks.state == BlockState.INACTIVE]
    home = np.searchsorted(at.segments.addr, free.addr, "right") - 1
    return int(free.size[at.segments.pool[home] != 0].sum())


def free_pieces(case: FailedRequest, at: Layout) -> Ints:
    """Return sizes of the free cached blocks that may serve the request.

    These are the blocks of its pool and its stream.
    """
    blocks, segments = at.blocks, at.segments
    free = blocks[blocks.state == BlockState.INACTIVE]
    if not len(free):
        return np.zeros(0, np.int64)
    home = np.searchsorted(segments.addr, free.addr, "right") - 1
    small = case.size <= SMALL_LIMIT
    fitting = (
        (segments.small[home] == small)
        & (segments.stream[home] == case.stream)
        & (segments.pool[home] == 0)
    )
    found: Ints = free.size[fitting]
    return found
