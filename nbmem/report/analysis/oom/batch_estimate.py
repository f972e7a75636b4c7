"""Estimate the batch size that would have fitted, then simulate it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.model import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.report.analysis.oom.trial import Trial

_SHARES = 16
"""Parts of the batch that are tried until the simulator serves the request."""
_MARGIN = 0.05
"""Part of the room that an estimated batch leaves for current gradients and free pieces."""
_WITH_BATCH = (Category.INPUTS, Category.ACTIVATIONS, Category.OUTPUT_GRADIENTS)
STEP_PHASES = ("input", "forward", "backward", "inference")
_FIRST_DIMENSION = re.compile(r" \((\d+)[,)]")


def batch(trial: Trial) -> Iterator[Finding]:
    """Yield a smaller batch that fits, with room for the rest of the step."""
    if trial.phase not in STEP_PHASES or not trial.rerun.faithful:
        return
    share = _share_that_fits(trial)
    grows = _grows_with_batch(trial)
    while share > 0:
        resized = {at: max(int(size * share), 1) for at, size in grows.items()}
        if trial.rerun.served(resized=resized):
            break
        share -= 1 / _SHARES
    rows = _batch_size(trial)
    size = math.floor(share * (rows or _SHARES))
    if size < 1:
        return
    smaller = f"a batch of about {size}, not {rows}" if rows else f"{size}/{_SHARES} of the batch"
    saved = int(trial.bytes_of(trial.new_rows(*_WITH_BATCH)) * (1 - share))
    yield Finding(
        rule="batch_size",
        title=f"Take {smaller}",
        evidence="With inputs, activations and temporaries in proportion, the request is served; "
        "of what would have come after it in the step, room was left for activations "
        "(by the layers still to run) and gradients.",
        low=saved,
        high=saved,
        ground="estimated",
    )


def _share_that_fits(trial: Trial) -> float:
    """Estimate the part of the batch whose forward and gradients fit."""
    case, card_ledger = trial.case, trial.case.card_ledger
    live = card_ledger.live(case.index)
    growing = trial.bytes_of(trial.new_rows(*_WITH_BATCH)) + case.size
    fixed = trial.bytes_of(live) - growing + case.size
    if trial.phase in ("input", "forward") and not len(trial.rows(Category.GRADIENTS)):
        fixed += trial.bytes_of(trial.rows(Category.WEIGHTS))
    activations = trial.new_rows(Category.ACTIVATIONS)
    if trial.phase == "forward":  # backward begins with two gradients of the largest result
        blocks = card_ledger.allocations.block[activations]
        growing += 2 * max(case.size, int(blocks.max(initial=0)))
    if trial.phase == "forward" and case.refusal is not None and case.refusal.progress:
        growing += int(trial.bytes_of(activations) * (1 / case.refusal.progress - 1))
    room = (1 - _MARGIN) * (case.capacity - fixed)
    return min(max(room / growing, 0), 1 - 1 / _SHARES)


def _grows_with_batch(trial: Trial) -> dict[int, int]:
    """Map events to bytes that are in proportion to the batch.

    The failed request is among them.
    """
    card_ledger, case = trial.case.card_ledger, trial.case
    a = card_ledger.allocations
    born = (
        (a.allocated_at >= 0) & (a.allocated_at < case.index) & case.of_this_step(np.arange(len(a)))
    )
    of_step = card_ledger.phases.named(card_ledger.born_in, *STEP_PHASES)
    temporary = (card_ledger.category == Category.TEMPORARIES) & of_step
    grows = born & (np.isin(card_ledger.category, _WITH_BATCH) | temporary)
    events = [*a.allocated_at[grows].tolist(), case.index]
    return {event: trial.rerun.requested(event) for event in events}


def _batch_size(trial: Trial) -> int | None:
    """Return the first dimension of the largest input, or None.

    None if no input was seen.
    """
    a = trial.case.card_ledger.allocations
    rows = trial.new_rows(Category.INPUTS)
    for row in rows[np.argsort(-a.block[rows], kind="stable")].tolist():
        match = _FIRST_DIMENSION.search(trial.case.card_ledger.name(row) or "")
        if match:
            return int(match[1])
    return None
