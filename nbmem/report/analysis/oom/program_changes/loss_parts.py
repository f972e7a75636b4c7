"""Try a loss in parts on a failed step of a language model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.report.analysis.library_calls import PART, loss_in_parts
from nbmem.report.analysis.logits import Logits, logits_of
from nbmem.report.analysis.oom.continuations.continuation import LIVE, NEVER, FutureBlock
from nbmem.report.analysis.program_names import largest_model
from nbmem.report.model import Finding
from nbmem.report.savings import estimated

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.continuations.continuation import Continuation
    from nbmem.report.analysis.oom.trial import Outcome, Trial

_TOKENS = re.compile(r" \(([\d, ]+)\) int")
_WIDTHS = (2, 4)
"""Bytes of the numbers in which scores are computed."""
_MAX_ROUNDING = 2 * 1024 * 1024
"""Bytes by which the size of a failed request may be rounded up."""


def loss_parts(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield the loss in parts, where the step computes scores of words."""
    refusal = trial.case.refusal
    evaluating = refusal is not None and refusal.evaluating
    if trial.phase not in ("forward", "backward") or evaluating:
        return
    found = logits_of(trial.case.card_ledger) or _expected_logits(trial)
    if found is None or found.parts < 2:
        return
    live = np.intersect1d(found.rows, trial.rows(*Category))
    saved = trial.bytes_of(live)
    then, less = _in_parts(trial.then, found, live.tolist(), trial.case.stream)
    saved = max(saved + less - found.part_bytes, 0)
    if not saved:
        return
    yield (
        Finding(
            rule="logits",
            title=f"Compute the loss in parts of {PART:,} positions: about {format_bytes(saved)} "
            "less",
            evidence=f"The scores of {int(found.head['words']):,} words for {found.positions:,} "
            "positions are computed and freed part by part.",
            **estimated(saved),
            code=loss_in_parts(found.model),
        ),
        trial.now(freed=live.tolist(), then=then),
    )


def _expected_logits(trial: Trial) -> Logits | None:
    """Return the scores of a step that failed before any were made, or None."""
    model = largest_model(trial.case.card_ledger.session)
    head = None if model is None else model.get("head")
    tokens = _tokens(trial)
    if model is None or not head or not tokens:
        return None
    return Logits(model=model, head=head, rows=np.zeros(0, np.int64), positions=tokens)


def _tokens(trial: Trial) -> int:
    """Return the positions of the step's largest input of integers."""
    names = (trial.case.card_ledger.name(row) or "" for row in trial.new_rows(Category.INPUTS))
    shapes = (
        match[1].replace(",", " ").split() for name in names if (match := _TOKENS.search(name))
    )
    return max((math.prod(map(int, shape)) for shape in shapes), default=0)


def _in_parts(
    then: Continuation, found: Logits, live: list[int], stream: int
) -> tuple[Continuation, int]:
    """Return what follows with one part at a time, and the bytes saved.

    Args:
        then: What follows now.
        found: The scores.
        live: Rows of scores that live at the failed request. They would be freed by then.
        stream: The stream of the step.
    """
    rows, removed = {*found.rows.tolist()}, {*live}
    largest = 0

    def change(block: FutureBlock) -> FutureBlock | None:
        nonlocal largest
        if block.requested_at == LIVE:
            return None if block.row in removed else block
        if block.row not in rows and not _has_their_size(block, found):
            return block
        largest = max(largest, block.size)
        return block._replace(size=max(1, block.size // found.parts))

    changed = then.changed(change)
    extra = FutureBlock(-0.5, NEVER, found.part_bytes + found.weight_bytes, stream, -1)
    return changed.changed_to((*changed.blocks, extra)), largest


def _has_their_size(block: FutureBlock, found: Logits) -> bool:
    """Return whether a block that is only expected has the bytes of scores."""
    if block.row >= 0 or not block.of_batch:
        return False
    whole = found.positions * int(found.head["words"])
    return any(0 <= block.size - whole * width < _MAX_ROUNDING for width in _WIDTHS)
