"""Replay recorded events with other settings or in another order.

Only the requests are replayed: every alloc and free, in order. The simulated allocator decides
addresses and how much is taken from the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.recordings.restore import restore
from nbmem.allocator.settings import AllocatorSettings
from nbmem.report.analysis.replay_variants import NO_LIMIT, AllocatorReplay, ReplayOutcome

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.session import DeviceTrace
    from nbmem.report.ledger.card_ledger import CardLedger

ALIKE = 0.02
"""Part of the recorded reserved peak by which an unchanged replay may differ."""
MAX_EVENTS = 100_000
"""Limit on replayed events (a fifth of a second); the figures are then of these alone."""


def try_settings(  # noqa: PLR0913 - each is one setting that can be varied
    card_ledger: CardLedger,
    conf: str | None = None,
    *,
    limit: int | None = None,
    empty_at: Collection[int] = (),
    resized: Mapping[int, int] | None = None,
    at_once: bool = False,
) -> ReplayOutcome:
    """Replay the recorded requests with other settings or limits.

    Blocks from before the recording are allocated again, in the order of their addresses. At most
    MAX_EVENTS are replayed.

    Args:
        card_ledger: The card's ledger.
        conf: Text of PYTORCH_CUDA_ALLOC_CONF that is added to the current one; None: nothing.
        limit: Bytes that may be reserved; None: no limit.
        empty_at: Positions of additional calls of torch.cuda.empty_cache().
        resized: Other sizes for the requests at these positions; 0 leaves one out.
        at_once: Do not let freed blocks wait for streams that used them.

    Raises:
        UsageError: torch rejects the text.
    """
    run = begin_replay(card_ledger, conf, limit, at_once=at_once)
    count = min(len(card_ledger.trace.events), MAX_EVENTS)
    return run.replay(count, frozenset(empty_at), resized or {})


def begin_replay(
    card_ledger: CardLedger,
    conf: str | None = None,
    limit: int | None = None,
    *,
    at_once: bool = False,
    may_fail: Collection[int] = (),
) -> AllocatorReplay:
    """Return a replay with the blocks from before the recording.

    The arguments are those of `try_settings`.

    Args:
        card_ledger: The card's ledger.
        conf: Text of PYTORCH_CUDA_ALLOC_CONF that is added to the current one; None: nothing.
        limit: Bytes that may be reserved; None: no limit.
        at_once: Do not let freed blocks wait for streams that used them.
        may_fail: Positions of failed requests that the program went without.

    Raises:
        UsageError: torch rejects the text.
    """
    trace = card_ledger.trace
    run = AllocatorReplay(trace, _settings(trace, conf), limit, at_once=at_once, may_fail=may_fail)
    run.begin(_existing_blocks(card_ledger))
    return run


def is_as_recorded(card_ledger: CardLedger, replay: ReplayOutcome) -> bool:
    """Return whether an unchanged replay reserves what the run reserved.

    Otherwise no changed replay is meaningful.

    It never does if a request failed in the run, since the replay has no limit.
    """
    took = int(card_ledger.reserved[: replay.events + 1].max())
    return abs(replay.peak_reserved - took) <= ALIKE * took


def try_longest_first(card_ledger: CardLedger, first: int, last: int) -> ReplayOutcome:
    """Replay with one stretch run once before everything else.

    The stretch from `first` to `last` is the largest step.

    This is warming up with the longest batch: every later step finds large enough blocks.
    """
    run = begin_replay(card_ledger)
    run.rehearse(first, last)
    return run.replay(min(len(card_ledger.trace.events), MAX_EVENTS), frozenset(), {})


def try_freeing(card_ledger: CardLedger, rows: Ints, positions: Ints) -> int | None:
    """Return by how much freeing blocks sooner lowers the allocated peak.

    In bytes. Each block is freed at its position.

    Earlier frees change the placement of other blocks, and so their rounding. None if the unchanged
    replay differs from the recording by a byte, or if there are too many events.

    Args:
        card_ledger: The card's ledger.
        rows: The blocks, as rows of the ledger's allocations; each is allocated before its
            position.
        positions: The position at which each is freed.
    """
    count, peak = len(card_ledger.trace.events), int(card_ledger.allocated.max())
    if count > MAX_EVENTS or try_settings(card_ledger).peak_allocated != peak:
        return None
    sooner: dict[int, list[int]] = {}
    for at, addr in zip(
        positions.tolist(), card_ledger.allocations.addr[rows].tolist(), strict=True
    ):
        sooner.setdefault(at, []).append(addr)
    run = begin_replay(card_ledger)
    return peak - run.replay(count, frozenset(), {}, sooner).peak_allocated


def try_again(
    card_ledger: CardLedger,
    first: int,
    last: int,
    *,
    once: Collection[int],
    instead: Mapping[int, int],
) -> ReplayOutcome:
    """Replay the recording, then one of its iterations once more.

    The recording is replayed up to `last`; the iteration is the stretch from `first`.

    Args:
        card_ledger: The card's ledger.
        first: Position at which the iteration begins.
        last: Position at which it ends.
        once: Positions of requests of the stretch that are not repeated (a state, a workspace).
        instead: For requests whose block outlived the stretch: their position, and the position
            that frees the first iteration's block. The name or gradient is reassigned then.
    """
    run = begin_replay(card_ledger)
    run.replay(last, frozenset(), {})
    run.repeat(first, last, once, instead)
    return run.outcome(last, None)


def with_conf(trace: DeviceTrace, conf: str) -> str:
    """Return the PYTORCH_CUDA_ALLOC_CONF in force with `conf` added."""
    now = str(trace.settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")
    keys = {part.partition(":")[0].strip() for part in conf.split(",")}
    kept = [p for p in now.split(",") if p and p.partition(":")[0].strip() not in keys]
    return ",".join([*kept, conf])


def recorded_settings(trace: DeviceTrace) -> AllocatorSettings:
    """Return the allocator settings under which the recording was made."""
    return AllocatorSettings.from_torch(trace.settings, trace.release)


def _settings(trace: DeviceTrace, conf: str | None) -> AllocatorSettings:
    now = recorded_settings(trace)
    now = replace(now, per_process_memory_fraction=None, garbage_collection_threshold=0.0)
    return now if conf is None else now.updated(with_conf(trace, conf), trace.release)


def _existing_blocks(card_ledger: CardLedger) -> list[tuple[int, int]]:
    """Return address and requested bytes of pre-existing blocks, by address.

    They were allocated before the recording.
    """
    a = card_ledger.allocations
    rows = np.flatnonzero((a.allocated_at < 0) & (a.freed >= 0))
    return list(zip(a.addr[rows].tolist(), a.requested[rows].tolist(), strict=True))


def try_emptying(card_ledger: CardLedger) -> int:
    """Return the bytes that empty_cache() gives back after the recording."""
    trace = card_ledger.trace
    allocator = CachingAllocator(
        total_bytes=NO_LIMIT, release=trace.release, settings=_settings(trace, None)
    )
    restore(allocator, trace.end)
    before = allocator.reserved
    allocator.empty_cache()
    return before - allocator.reserved


def try_more(card_ledger: CardLedger, sizes: Sequence[int]) -> tuple[int, int]:
    """Return by how much requests after the recording raise memory use.

    In allocated and reserved bytes.
    """
    trace = card_ledger.trace
    allocator = CachingAllocator(
        total_bytes=NO_LIMIT, release=trace.release, settings=_settings(trace, None)
    )
    restore(allocator, trace.end)
    allocated, reserved = allocator.allocated, allocator.reserved
    for size in sizes:
        allocator.malloc(size, 0)
    return allocator.allocated - allocated, allocator.reserved - reserved
