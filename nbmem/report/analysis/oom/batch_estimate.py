"""Estimate a batch size with which the program runs on, and simulate it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.library_calls import is_in_trainer
from nbmem.report.analysis.oom.continuations.continuation import (
    STEP_PHASES,
    grows_with_batch,
)
from nbmem.report.analysis.oom.program_changes.trainer_evaluation import is_in_evaluation
from nbmem.report.analysis.program_names import batch_size_code
from nbmem.report.model import Finding
from nbmem.report.savings import estimated

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.trial import Outcome, Trial

MAX_REPLAYS = 5
_FEW_REPLAYS = 2
_MARGIN = 0.05
"""Part of the room that the first estimate leaves."""
_LESS, _MORE = 0.75, 1.2
"""Factors from one tried batch to the next, until one fits and a larger one does not."""
_SHARES = 16
_TRL = ("trl", "trainer")
_OF_PAIRS = ("dpo_trainer.py", "reward_trainer.py")
"""Trainers whose input has two rows for each sample of a batch."""
_FIRST_DIMENSION = re.compile(r" \((\d+)[,)]")
"""The batch of an input's name: `x (32, 3, 224, 224) float32`."""


def batch(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield a smaller batch with which the program runs on."""
    if trial.phase not in STEP_PHASES or not trial.rerun.faithful:
        return
    rows = _batch_size(trial)
    best = _largest(trial, rows)
    if best is None:
        return
    share, outcome = best
    size = round(share * rows) if rows else math.floor(share * _SHARES)
    if size < 1 or (rows and size >= rows):
        return
    if rows and _is_of_pairs(trial):
        rows, size = rows // 2, size // 2
        if size < 1:
            return
    smaller = (
        f"a batch of about {size} (lower bound), not {rows}"
        if rows
        else f"{size}/{_SHARES} of the batch"
    )
    ledger = trial.case.card_ledger
    live = ledger.live(trial.case.index)
    scaled = live[grows_with_batch(ledger)[live] & trial.case.of_this_step(live)]
    saved = int((trial.bytes_of(scaled) + trial.case.size) * (1 - share))
    yield (
        Finding(
            rule="batch_size",
            title=f"Take {smaller}",
            evidence="With inputs, activations and temporaries in proportion, the request is "
            "served. `nbmem fit` (in a notebook `%%nbmem fit`) finds the largest one.",
            **estimated(saved),
            code=_code(trial, rows, size) if rows else None,
        ),
        outcome,
    )


def _largest(trial: Trial, rows: int | None) -> tuple[float, Outcome] | None:
    """Return the largest part of the batch that suffices, or None."""
    best: tuple[float, Outcome] | None = None
    share, fails = _first_share(trial), 1.0
    for _ in range(_FEW_REPLAYS if trial.rerun.is_long else MAX_REPLAYS):
        share = _rounded(share * rows) / rows if rows else share
        if share <= (0 if best is None else best[0]) or share >= fails:
            break
        outcome = _try(trial, share)
        if outcome is None or (trial.known and not _is_enough(trial, outcome)):
            fails = share
            share = share * _LESS if best is None else (best[0] + fails) / 2
        else:
            best = share, outcome
            if not trial.known:  # what follows the request has to fit, too
                break
            share = min(share * _MORE, (share + fails) / 2)
    if best is None or trial.then.calls_left is None:
        return best
    share = best[0] * (1 - _MARGIN)  # where its free pieces will lie is not sure
    return (_rounded(share * rows) / rows if rows else share), best[1]


def _is_enough(trial: Trial, outcome: Outcome) -> bool:
    """Return whether it is worth to look for a larger batch.

    A generation has to come to its end; what grows with each step may run out later.
    """
    return outcome.kind == "on" or (outcome.kind == "more" and trial.then.calls_left is None)


def _code(trial: Trial, rows: int, size: int) -> str:
    if is_in_evaluation(trial):
        return f"per_device_eval_batch_size = {size}   # in TrainingArguments"
    if is_in_trainer(trial.case):
        return (
            f"per_device_train_batch_size = {size}   # in TrainingArguments; as many samples in a "
            "step with gradient_accumulation_steps"
        )
    return batch_size_code(trial.case.card_ledger.session, rows, size)


def _is_of_pairs(trial: Trial) -> bool:
    """Return whether a trainer of TRL has two rows for each sample.

    They are of a chosen and of a rejected text.
    """
    seen = trial.case.refusal
    return seen is not None and any(
        PurePath(frame.file).parts[-3:-1] == _TRL and PurePath(frame.file).name in _OF_PAIRS
        for frame in seen.stack
    )


def _try(trial: Trial, share: float) -> Outcome | None:
    """Try a part of the batch in the whole recording and behind it."""
    ledger = trial.case.card_ledger
    a = ledger.allocations
    mask = grows_with_batch(ledger) & (a.allocated_at >= 0) & (a.allocated_at < trial.case.index)
    places, sizes = a.allocated_at[mask].tolist(), a.requested[mask].tolist()
    resized = {at: max(int(size * share), 1) for at, size in zip(places, sizes, strict=True)}
    return trial.again(resized=resized, then=trial.then.resized(share))


def _rounded(size: float) -> int:
    """Round a batch down to two digits, and above 16 to an even number."""
    if size < 100:
        return int(size) if size < 16 else int(size) // 2 * 2
    unit = 10 ** (int(math.log10(size)) - 1)
    return int(size // unit * unit)


def _first_share(trial: Trial) -> float:
    """Return a share that fits by the highest sum of what follows."""
    ledger = trial.case.card_ledger
    of_batch = grows_with_batch(ledger)
    growing = fixed = 0
    best = 1.0
    room = (1 - _MARGIN) * trial.case.capacity
    todo = [
        (b.requested_at, True, b) for b in trial.then.blocks if b.requested_at < trial.then.one_more
    ]
    todo += [(b.freed_at, False, b) for b in trial.then.blocks if b.freed_at < trial.then.one_more]
    if not trial.known:
        live = ledger.live(trial.case.index)
        growing = int(ledger.allocations.block[live[of_batch[live]]].sum())
        growing += trial.case.size  # what is computed of the request is as large again
        fixed = int(ledger.allocations.block[live[~of_batch[live]]].sum())
    for _, is_request, block in sorted(todo, key=lambda one: one[:2]):
        size = block.size if is_request else -block.size
        if block.of_batch:
            growing += size
        else:
            fixed += size
        if growing > 0:
            best = min(best, (room - fixed) / growing)
    growing += trial.then.slope * (trial.then.calls_left or 0)
    if trial.then.calls_left and growing > 0:
        best = min(best, (room - fixed) / growing, 1 - _MARGIN)  # some room is in pieces
    return max(best, 0.0)


def _batch_size(trial: Trial) -> int | None:
    """Return the first dimension of the largest input, or None.

    Of a step of several forwards it may be an earlier one's. None if no input was seen.
    """
    a, samples = trial.case.card_ledger.allocations, _samples_of_call(trial)
    if samples is not None:
        return samples
    rows = trial.new_rows(Category.INPUTS)
    rows = rows if len(rows) else trial.rows(Category.INPUTS)
    for row in rows[np.argsort(-a.block[rows], kind="stable")].tolist():
        match = _FIRST_DIMENSION.search(trial.case.card_ledger.name(row) or "")
        if match:
            return int(match[1])
    return None


def _samples_of_call(trial: Trial) -> int | None:
    """Return the rows that the failing call was given, or None.

    The inputs of a call are named at its end. Until the first one of a forward has ended, the named
    inputs may be of another task, such as an evaluation. None once one has ended: what runs may be
    a loss.
    """
    case, ledger = trial.case, trial.case.card_ledger
    call = None if case.refusal is None else case.refusal.call
    if call is None or trial.phase not in ("forward", "inference"):
        return None
    phase = int(ledger.phases.of(np.array([case.index], np.int64))[0])
    labels = ledger.trace.storage_labels
    since = 0 if phase < 0 else ledger.phases.bounds(phase)[0]
    named = (labels.category == Category.INPUTS) & (labels.position > since)
    return None if (named & (labels.position <= case.index)).any() else call.samples
