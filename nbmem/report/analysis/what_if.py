"""Replay recorded events with other settings or in another order.

Only the requests are replayed (every alloc and free, in their order); where memory lies, and how
much is taken from the driver for it, is the simulated allocator's answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.recordings.restore import restore
from nbmem.allocator.settings import AllocatorSettings
from nbmem.report.analysis.replay_variants import NO_LIMIT, AllocatorReplay

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nbmem.core.session.session import DeviceTrace
    from nbmem.report.analysis.replay_variants import ReplayOutcome
    from nbmem.report.ledger.allocation_facts import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

ALIKE = 0.02
"""Part of the recorded reserved peak by which a replay of the run as it was may be off."""
MOST_EVENTS = 100_000
"""Events that are replayed at most (a fifth of a second); figures then speak of these alone."""


def try_settings(  # noqa: PLR0913 - each names one thing that could have been otherwise
    card_ledger: CardLedger,
    conf: str | None = None,
    *,
    limit: int | None = None,
    empty_at: Collection[int] = (),
    resized: Mapping[int, int] | None = None,
    last: int | None = None,
    at_once: bool = False,
) -> ReplayOutcome:
    """Replay the recorded requests with other settings or limits.

    What lived before the recording is taken anew, in the order of its addresses.

    Args:
        card_ledger: The card's books.
        conf: Text of PYTORCH_CUDA_ALLOC_CONF that is added to what is in force; None: nothing.
        limit: Bytes that may be reserved; None: as many as it takes.
        empty_at: Positions at which torch.cuda.empty_cache() is called, too.
        resized: Other bytes for the requests at these positions; 0 leaves one out.
        last: Position at which to stop; None: at the end, or after MOST_EVENTS.
        at_once: No block that is freed waits for a stream that used it.

    Raises:
        UsageError: torch refuses the text.
    """
    trace = card_ledger.trace
    run = AllocatorReplay(trace, _settings(trace, conf), limit, at_once=at_once)
    run.begin(_existing_blocks(card_ledger))
    count = min(len(trace.events), MOST_EVENTS if last is None else last)
    return run.replay(count, frozenset(empty_at), resized or {})


def is_as_recorded(card_ledger: CardLedger, replay: ReplayOutcome) -> bool:
    """Return whether an unchanged replay reserves what the run reserved.

    Otherwise no changed replay says anything.

    Where a request was refused it cannot, since it has all the memory that it wants.
    """
    took = int(card_ledger.reserved[: replay.events + 1].max())
    return abs(replay.peak_reserved - took) <= ALIKE * took


def try_longest_first(card_ledger: CardLedger, first: int, last: int) -> ReplayOutcome:
    """Replay with one stretch run once before everything else.

    The stretch from `first` to `last` is the largest step.

    Known as warming up with the longest batch: every later one finds blocks that are large enough.
    """
    trace = card_ledger.trace
    run = AllocatorReplay(trace, _settings(trace, None), None)
    run.begin(_existing_blocks(card_ledger))
    run.rehearse(first, last)
    return run.replay(min(len(trace.events), MOST_EVENTS), frozenset(), {})


def try_freeing(card_ledger: CardLedger, rows: Ints, positions: Ints) -> int | None:
    """Return by how much freeing blocks sooner lowers the allocated peak.

    In bytes. These blocks are freed at these positions.

    What is freed sooner lets others lie elsewhere, so that what their blocks round up to differs,
    too. None where the unchanged replay is not the recording to the byte, or there is too much.

    Args:
        card_ledger: The card's books.
        rows: The blocks, as rows of the books' allocations; each is born before its position.
        positions: Where each goes.
    """
    count, peak = len(card_ledger.trace.events), int(card_ledger.allocated.max())
    if count > MOST_EVENTS or try_settings(card_ledger).peak_allocated != peak:
        return None
    sooner: dict[int, list[int]] = {}
    for at, addr in zip(
        positions.tolist(), card_ledger.allocations.addr[rows].tolist(), strict=True
    ):
        sooner.setdefault(at, []).append(addr)
    run = AllocatorReplay(card_ledger.trace, _settings(card_ledger.trace, None), None)
    run.begin(_existing_blocks(card_ledger))
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
        card_ledger: The card's books.
        first: Position at which the iteration begins.
        last: Position at which it ends.
        once: Positions of requests of the stretch that are not made again (a state, a workspace).
        instead: Position of a request whose block outlived the stretch, to that at which the block
            of the first iteration goes, since the name or the gradient gets the new one.
    """
    trace = card_ledger.trace
    run = AllocatorReplay(trace, _settings(trace, None), None)
    run.begin(_existing_blocks(card_ledger))
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
