"""Try the Trainer's setting by which an evaluation gathers on the host.

Its `evaluation_loop` keeps what the model returned for every batch, joined to what it kept before,
until the last batch. `eval_accumulation_steps=1` moves it to the host after each batch. Then each
batch is as the first one was, which ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from nbmem.core.units import format_bytes
from nbmem.report.analysis.oom.trial import Outcome, Trial, kept_elsewhere
from nbmem.report.model import Finding
from nbmem.report.savings import exact, simulated

_FILE = ("transformers", "trainer.py")
_FUNCTION = "evaluation_loop"
_KEPT = ("local all_preds", "local all_labels", "local all_inputs", "local all_losses")
"""Names of what that function keeps of all batches."""
_PLACE = f" of {_FUNCTION}()"


def gathered_evaluation(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield the setting by which each batch's results move to the host."""
    if not is_in_evaluation(trial):
        return
    ledger = trial.case.card_ledger
    live = ledger.live(trial.case.index)
    rows = np.array([row for row in live.tolist() if _is_kept(ledger.name(row))], np.int64)
    if not len(rows):
        return
    size, outcome = trial.bytes_of(rows), _outcome(trial, rows.tolist())
    yield (
        Finding(
            rule="eval_accumulation",
            title="Set `eval_accumulation_steps=1` in TrainingArguments: the Trainer keeps "
            f"{format_bytes(size)} of earlier batches' predictions on the card",
            evidence="They are joined to each batch's, and then move to the host after each. Where "
            "the metric needs only the best word, `preprocess_logits_for_metrics=lambda logits, "
            "labels: logits.argmax(-1)` keeps them small there, too.",
            **(exact if outcome.shown else simulated)(size),
            code="eval_accumulation_steps = 1   # in TrainingArguments",
        ),
        outcome,
    )


def _outcome(trial: Trial, rows: list[int]) -> Outcome:
    """Return how far the evaluation runs on.

    What an earlier batch shows is tried. Else the first batch has shown it: it ran with nothing
    kept, and so does each batch now.
    """
    requested = trial.case.card_ledger.allocations.requested
    then = kept_elsewhere(trial.then, requested)
    tried = trial.now(freed=rows, then=then) if trial.then.slope else None
    return tried if tried is not None and tried.kind == "on" else Outcome("on", shown=True)


def is_in_evaluation(trial: Trial) -> bool:
    """Return whether the request failed in an evaluation of the Trainer."""
    refusal = trial.case.refusal
    return refusal is not None and any(
        frame.function == _FUNCTION and PurePath(frame.file).parts[-2:] == _FILE
        for frame in refusal.stack
    )


def _is_kept(name: str | None) -> bool:
    return name is not None and name.startswith(_KEPT) and _PLACE in name
