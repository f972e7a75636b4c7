"""Cached memory builds up while more is taken from the driver.

What it sees
    Whole segments that lay free to the end while torch took new ones, since their pieces were too
    small for what was asked: a change of sizes (another model, another batch) left them behind. It
    speaks where they are a third of the card, or memory is short: an evaluation in larger batches
    leaves them behind, too, and on a card with room nobody misses them. It also speaks where four
    fifths of the card are cached at the end of a notebook's cell, whatever left them, or through
    three training steps of a script. Pieces of
    segments in use are not counted: empty_cache() cannot give them back.
What it costs
    Nothing on a card with room. Where other programs share the card, or the next allocation is
    large, it is memory that nobody can use.
Do instead
    `torch.cuda.empty_cache()` once, where the sizes change. Not in the training loop: torch would
    have to ask the driver again in every step.
When to ignore it
    The next steps have the same sizes as before: cached memory is what makes them fast. It never
    helps against memory that is allocated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import TAKES
from nbmem.report.analysis.what_if import try_emptying, try_settings
from nbmem.report.model import Command
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

OF_THE_CARD = 1 / 3
"""Part of a card with room that must be cached. With room, cached bytes do no harm: torch releases
them before a request fails."""
FULL = 0.8
"""Part of the card that is mentioned whenever it is cached at the end of a cell: no other program,
and no other framework of this one, finds room then. A script gives it back by ending."""
STEPS = 3
"""Training steps of a script that ran beside such a cache, and did not use it."""
IDLE = 0.12
"""Part of the reserved bytes that must be idle. Plain training runs leave up to 0.17 idle after
their first step (workspaces that cuDNN tried), so growth in a loop does not count."""


def check(e: Evidence) -> Findings:
    """Find cached memory that lay idle while torch took more.

    If all tips are requested: whatever empty_cache() would release.
    """
    now = int(e.card_ledger.releasable[-1])
    idle = _idle_while_growing(e)
    stays = e.fact("notebook") is not False
    full = e.card_known and now >= FULL * e.trace.info.total_bytes
    full = full and (stays or _later_steps(e) >= STEPS)
    if not e.matters(now, OF_THE_CARD) or not (idle or full or e.everything):
        return
    now = try_emptying(e.card_ledger)
    evidence = (
        f"{fmt(e.report.ledger_at_end.reserved)} are reserved at the end and "
        f"{fmt(e.report.ledger_at_end.allocated)} allocated; {fmt(now)} of the cache are whole "
        "segments, which empty_cache() can give back."
    )
    if idle is not None:
        at, free, grown = idle
        peak = e.report.peak.reserved
        outcome = try_settings(e.card_ledger, empty_at=(at,))
        evidence += (
            f" {fmt(free)} lay idle while torch took {fmt(grown)} more from the driver: with "
            f"empty_cache() before that, reserved would have peaked at {fmt(outcome.peak_reserved)}"
            f", not {fmt(peak)}."
        )
    if full:
        share = 100 * now / e.trace.info.total_bytes
        evidence += f" That is {share:.0f}% of the card, in which nothing else finds room."
    yield RULE.finding(
        title=f"`torch.cuda.empty_cache()` gives back {fmt(now)} that is cached and not used",
        evidence=evidence,
        saves=simulated(max(0, now - _next_step(e)), now),
        code="import torch; torch.cuda.empty_cache()",
        command=Command(name="free", arguments=("cache",)),
    )


def _next_step(e: Evidence) -> int:
    """Return the bytes that another step would take from the driver."""
    begins = e.step_ends[-2] if len(e.step_ends) > 1 else e.card_ledger.events
    return int(e.card_ledger.allocated[begins:].max() - e.card_ledger.allocated[-1])


def _later_steps(e: Evidence) -> int:
    """Count the training steps that ran while so much of the card was cached."""
    cached = e.card_ledger.releasable >= FULL * e.trace.info.total_bytes
    since = len(cached) - int(np.argmin(cached[::-1])) if not cached.all() else 0
    spans = (span for _, span in e.card_ledger.phases.spans if span.name == "backward")
    return sum(e.card_ledger.bounds(span)[0] >= since for span in spans)


def _idle_while_growing(e: Evidence) -> tuple[int, int, int] | None:
    """Find where cache lay idle while torch took more, or return None.

    The result is the position, the bytes that stay idle from there to the end, and the bytes taken
    from the driver since.

    Cache is unused only if it stayed idle while torch took more from the driver. A ratio cannot
    tell this fault from a plain VGG.
    """
    events, card_ledger = e.trace.events, e.card_ledger
    grows = np.isin(events.action, TAKES)
    taken = np.where(grows, events.size, 0)
    since = np.append(np.cumsum(taken[::-1])[::-1], 0)
    idle = np.minimum.accumulate(card_ledger.releasable[::-1])[::-1]
    least = max(1, int(IDLE * e.report.peak.reserved))
    if len(e.step_ends) > 1:  # a loop takes what it needs; count only what stays after it
        stays = card_ledger.allocated[-1] - card_ledger.allocated[:-1]
        grows &= (np.arange(len(events)) >= _loop_ends(e)) & (stays >= least)
    places = np.flatnonzero(grows & (np.minimum(idle, since)[:-1] >= least))
    if not len(places):
        return None
    at = int(places[np.argmax(card_ledger.releasable[places])])
    return at, int(idle[at]), int(since[at])


def _loop_ends(e: Evidence) -> int:
    """Return the position where the last backward ended.

    The phase after it lasts to the end of the recording.
    """
    spans = (span for _, span in e.card_ledger.phases.spans if span.name == "backward")
    return max((e.card_ledger.bounds(span)[1] for span in spans), default=0)


RULE = Rule(name="cached_memory", text=__doc__, check=check, of_cache=True)
