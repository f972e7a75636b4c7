"""The cache is fragmented: free memory lies in pieces that are too small.

What it sees
    Reserved memory far above allocated, and a reason to mind: a request that the driver refused or
    that torch could serve only after it had given its cache back, or a card that is nearly full.
    Where a remedy saves a tenth of the card also sizes that change from step to step while
    reserved grows, or an empty_cache() that left much behind.
What it costs
    The difference between reserved and allocated at the peak; retries, which stop the GPU.
Do instead
    What the simulated allocator found best on the recorded events: expandable segments,
    max_split_size_mb, or the longest batch first (or padding to it), so that all later ones fit.
    Settings are read when torch first touches the card: set them, then restart the kernel.
When to ignore it
    The card has room and nobody else needs it. A setting that is in force is never proposed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import TAKES
from nbmem.report.analysis.growth import step_peaks, steps_are_equal
from nbmem.report.analysis.what_if import (
    MAX_EVENTS,
    is_as_recorded,
    recorded_settings,
    try_longest_first,
    try_settings,
    with_conf,
)
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.analysis.replay_variants import ReplayOutcome
    from nbmem.report.tips.evidence import Evidence

GAIN = 0.05
"""Part of the recorded reserved peak that a remedy must save."""
OF_THE_CARD = 0.1
"""Part of a card with room that a remedy must save: a restart is not worth less."""
GROWTH = 0.05
"""Part of the reserved peak by which unused bytes must grow after the second step."""
FEWEST = 3
"""Steps that must have taken more: one larger batch is not a changing size."""
SPLIT_SIZES = (64, 256)
"""max_split_size_mb values that are tried."""
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


def check(e: Evidence) -> Findings:
    """Find a reason, try all remedies on the events, and report the best."""
    reason = _reason(e)
    if reason is None:
        return
    now = try_settings(e.card_ledger)
    refused = e.ran_out or bool(e.retries)
    if not refused and not is_as_recorded(e.card_ledger, now):
        return
    # If requests failed, an unlimited replay exceeds what was reserved: use the recorded figure.
    took = int(e.card_ledger.reserved.max()) if refused else now.peak_reserved
    tried = sorted(_sufficient_remedies(e, took), key=lambda entry: entry[1].peak_reserved)
    if not tried:
        return
    conf, best = tried[0]
    less = now.peak_reserved - best.peak_reserved
    if less < GAIN * now.peak_reserved or not e.matters(less, OF_THE_CARD):
        return
    others = "".join(f", {_name(e, c)} {_figure(e, o.peak_reserved)}" for c, o in tried[1:])
    first = f" (of the first {MAX_EVENTS:,} events)" if e.card_ledger.events > MAX_EVENTS else ""
    what = (
        "for the same requests, none of them refused"
        if refused
        else f"at the peak, not {fmt(took)}"
    )
    was = f"{fmt(took)} until a request was refused" if refused else fmt(took)
    saves = took - best.peak_reserved
    yield RULE.finding(
        title=f"{_name(e, conf)} would have reserved {fmt(best.peak_reserved)} {what}",
        evidence=f"{reason} Tried on the recorded events{first}: {_name(e, conf)} "
        f"{fmt(best.peak_reserved)}{others}; as it was {was}. At most {fmt(now.peak_allocated)} "
        "were allocated.",
        saves=simulated(saves),
        code=_code(e, conf),
    )


def _figure(e: Evidence, count: int) -> str:
    """Format the bytes that a replay reserved.

    A replay has unlimited memory, maybe more than the card has.
    """
    there = e.card_known and 0 < e.trace.info.total_bytes < count
    return "more than the card has" if there else fmt(count)


def _reason(e: Evidence) -> str | None:
    card_ledger, events = e.card_ledger, e.trace.events
    if refused := card_ledger.refused.failed:
        at = refused[0]
        return (
            f"A request for {fmt(int(events.size[at]))} failed while "
            f"{fmt(int(card_ledger.reserved[at] - card_ledger.allocated[at]))} of the reserved "
            "memory was free."
        )
    if e.retries:
        at = e.retries[0]
        return (
            "The driver refused a request, so torch gave back "
            f"{fmt(int(card_ledger.releasable[at]))} of its cache and asked again, which stops "
            "the GPU."
        )
    for at in e.emptied:
        stuck = int(card_ledger.reserved[at] - card_ledger.active[at] - card_ledger.releasable[at])
        if e.worth(stuck) and stuck >= GAIN * card_ledger.reserved[at] and not e.trains_before(at):
            return (
                f"empty_cache() gave back {fmt(int(card_ledger.releasable[at]))} and left "
                f"{fmt(stuck)} "
                "in segments that tensors in use share."
            )
    ends = e.step_ends
    if len(_growing_steps(e)) >= FEWEST:
        until, last = ends[1] + 1, ends[-1] + 1
        before = int(card_ledger.reserved[:until].max()) - int(card_ledger.active[:until].max())
        more = (
            int(card_ledger.reserved[:last].max()) - int(card_ledger.active[:last].max()) - before
        )
        grown = int(card_ledger.reserved[:last].max()) - int(card_ledger.reserved[:until].max())
        if e.worth(more) and more >= GROWTH * card_ledger.reserved[:last].max():
            return (
                f"Reserved still grew by {fmt(grown)} after the second of {len(ends)} steps, "
                f"{fmt(more)} more than what was in use: the sizes change from step to step."
            )
    return None if e.short is None and not e.everything else f"{e.short or 'Asked for'}."


def _growing_steps(e: Evidence) -> set[int]:
    """Return steps after the second whose training took driver memory.

    An evaluation does not count.
    """
    takes = np.isin(e.trace.events.action, TAKES)
    at = np.flatnonzero(takes)
    trained = e.card_ledger.phases.named(
        e.card_ledger.phases.of(at), "forward", "backward", "optimizer"
    )
    steps = np.searchsorted(e.step_ends, at[trained], side="right")
    return {step for step in steps.tolist() if 1 < step < len(e.step_ends)}


def _sufficient_remedies(e: Evidence, took: int) -> list[tuple[str | None, ReplayOutcome]]:
    """Return the remedies under which no request would have been refused.

    None of them reserves more than was reserved.
    """
    tried = list(_tried(e))
    if e.ran_out:  # the failed request counts, too
        confs = [conf for conf, _ in tried if conf is not None]
        tried = [(conf, try_settings(e.card_ledger, conf, limit=took)) for conf in confs]
        return [t for t in tried if t[1].refused is None]
    return [t for t in tried if not e.retries or t[1].peak_reserved <= took]


def _tried(e: Evidence) -> Iterator[tuple[str | None, ReplayOutcome]]:
    settings = recorded_settings(e.trace)
    if not settings.expandable_segments:
        yield "expandable_segments:True", try_settings(e.card_ledger, "expandable_segments:True")
        if settings.max_split_size is None:
            for size in SPLIT_SIZES:
                conf = f"max_split_size_mb:{size}"
                yield conf, try_settings(e.card_ledger, conf)
    ends = e.step_ends
    if len(ends) > 2:
        first, last = _largest_step(e)
        yield None, try_longest_first(e.card_ledger, first, last)


def _name(e: Evidence, conf: str | None) -> str:
    first = "a training step" if steps_are_equal(e.card_ledger) else "the longest batch"
    return conf or f"{first} first"


def _code(e: Evidence, conf: str | None) -> str:
    if conf is None and steps_are_equal(e.card_ledger):
        return "# one training step before what else the loop does: an evaluation, a sample"
    if conf is None:
        return "# one step with the longest batch before the loop, or pad every batch to it"
    whole = with_conf(e.trace, conf)
    return f'import os\n\nos.environ["{VARIABLE}"] = "{whole}"   # before torch touches the card'


def _largest_step(e: Evidence) -> tuple[int, int]:
    """Return where the step that allocated most begins and ends."""
    ends, tops = [0, *e.step_ends.tolist()], step_peaks(e.card_ledger)
    at = tops.index(max(tops))
    spans = (span for _, span in e.card_ledger.phases.spans if span.step is not None)
    begins = min((e.card_ledger.bounds(span)[0] for span in spans), default=0)
    return ends[at] if at else begins, ends[at + 1]


RULE = Rule(name="fragmentation", text=__doc__, check=check, of_cache=True)
