"""Logits make the peak of a language model: compute the loss in parts.

What it sees
    A language model's layer that scores words, and tensors of its scores: logits, their float32
    copy, what the loss saves, and the gradients of these. In a training they are half of the peak
    and a quarter of the card, or memory is short and they are a quarter of the peak. In inference:
    logits of all positions, from a quarter of the peak on. And a line that casts all scores to
    float32, of which a loop then reads a part at a time.
What it costs
    Each is positions x words x 2 or 4 bytes: for 8 x 1,024 positions and 128,256 words 2 or 4 GiB.
    Three or four of them live at once.
Do instead
    Compute the loss of some thousand positions at a time, each part checkpointed: the code does it
    for a model of transformers. `use_liger_kernel=True` in TrainingArguments fuses both steps if
    Liger is installed; trl's SFTTrainer computes its `nll` loss in parts since 1.0; in torch 2.13
    `torch.nn.functional.linear_cross_entropy(hidden, weight, target, options=...)` is both in one
    call. For generation, `logits_to_keep=1` scores the last position only. In a loop over parts of
    the scores, cast each part inside the loop.
When to ignore it
    The peak lies elsewhere, or the vocabulary is small. The head is computed twice: for a model of
    some billion weights 1 to 3% more time.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.tensor_names import VIEW, is_graph_name, is_place, without_shape
from nbmem.core.session.variable_paths import parse_path
from nbmem.report.analysis.allocation_lines import AllocationLine, allocation_lines
from nbmem.report.analysis.library_calls import PART, library_model, loss_in_parts
from nbmem.report.analysis.logits import FLOAT32, Logits, logits_of, shape_in_name
from nbmem.report.analysis.program_names import is_expression
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

_CAST = re.compile(r"\.float\(\)|\bfloat32\b|\.double\(\)|\bfloat64\b")
OF_THE_PEAK, OF_THE_CARD = 0.5, 0.25
"""Parts from which the scores of a training are told on a card with room."""


def check(e: Evidence) -> Findings:
    """Compare the peak with that without the scores."""
    found = logits_of(e.card_ledger)
    if found is None or found.parts < 2:
        return
    phases = e.card_ledger.phases
    training = phases.named(e.card_ledger.born_in[found.rows], "forward", "backward")
    if training.any() and _is_training(e, found):
        cast = list(_cast_in_one(e, found))
        yield from cast or _trained(e, found)
    else:
        yield from _inferred(e, found)


def _is_training(e: Evidence, found: Logits) -> bool:
    """Return whether a loss of the scores may follow.

    A model in eval mode that no backward went through has none: it only lacks torch.no_grad().
    """
    return bool(e.phases("backward")) or found.model.get("training") is not False


def _trained(e: Evidence, found: Logits) -> Findings:
    high = e.peak_saving(found.rows)
    kept = found.part_bytes + found.weight_bytes
    if kept >= high or not _is_worth_it(e, high):
        return
    size = _at_peak(e, found)
    yield RULE.finding(
        title=f"Compute the loss in parts of {PART:,} positions: {fmt_range(high - kept, high)} "
        f"less{_than(e, found)}",
        evidence=f"Scores of {int(found.head['words']):,} words for {found.positions:,} positions "
        f"hold {fmt(size)} of the {fmt(e.report.peak.allocated)} allocated at the peak. Without "
        f"them it is {fmt(high)} lower; a part of them, and one more gradient of the layer's "
        f"weight, take up to {fmt(kept)}.",
        saves=simulated(high - kept, high),
        code=loss_in_parts(found.model),
    )


def _cast_in_one(e: Evidence, found: Logits) -> Findings:
    """Find a line that casts all scores to float32 though only parts are read.

    Cast part by part, the scores and their gradients stay in half precision: half of the gradients
    are saved for sure. A part's copy may be freed before the next one, or be kept for backward.
    """
    lines, ledger = allocation_lines(e.card_ledger), e.card_ledger
    large = found.rows[np.argsort(-ledger.allocations.block[found.rows], kind="stable")]
    cast = [row for row in large.tolist() if row in lines and _is_cast_in_one(e, row, lines[row])]
    if not cast:
        return
    line = lines[cast[0]].lines[0]
    rows = np.array([row for row in cast if lines[row].lines[0] == line], np.int64)
    back = found.rows[ledger.phases.named(ledger.born_in[found.rows], "backward")]
    high = e.peak_saving(np.union1d(rows, back))
    low = min(high, e.peak_saving(back) // 2)
    if not e.is_large_part(low):
        return
    size = fmt(int(ledger.allocations.requested[rows[0]]))
    yield RULE.finding(
        title=f"{line.quoted}{line.inside} casts all scores "
        f"to float32: cast each part where it is read, {fmt_range(low, high)} less at the peak",
        evidence=f"The copy of the scores of {int(found.head['words']):,} words takes {size}, and "
        "only parts of it are read at a time. Its gradients are in float32 and as large as the "
        "whole, for every part that is read.",
        saves=estimated(low, high),
    )


def _is_cast_in_one(e: Evidence, row: int, line: AllocationLine) -> bool:
    """Return whether a line of the user's cast a tensor whose parts are read."""
    if line.by_module or not _CAST.search(line.lines[0].text):
        return False
    name = e.card_ledger.name(row) or ""
    shape = shape_in_name(name)
    whole = int(e.card_ledger.allocations.requested[row])
    return name.endswith(VIEW) and shape is not None and 2 * FLOAT32 * math.prod(shape) <= whole


def _than(e: Evidence, found: Logits) -> str:
    """Write the end of the title: which variable has the scores, if any."""
    names = [without_shape(e.card_ledger.name(row) or "") for row in found.rows.tolist()]
    places = [parse_path(name) for name in names if not (is_graph_name(name) or is_place(name))]
    paths = [one.path for one in places if not one.by_graph and is_expression(one.path)]
    return f" than with all of `{paths[0]}`" if paths else ""


def _is_worth_it(e: Evidence, high: int) -> bool:
    """Return whether so many bytes are worth another loss.

    With room on the card they must be half of the peak and a quarter of the card: each training of
    a language model has scores.
    """
    if e.everything or e.short is not None:
        return e.is_large_part(high)
    return e.dominates(high, OF_THE_PEAK) and e.matters(high, OF_THE_CARD)


def _inferred(e: Evidence, found: Logits) -> Findings:
    inner = library_model(found.model)
    high = e.peak_saving(found.rows)
    if inner is None or not inner["keeps"] or not e.is_large_part(high):
        return
    yield RULE.finding(
        title=f"If only the last position's scores are read, pass `logits_to_keep=1`: {fmt(high)} "
        "less",
        evidence=f"The model computes scores of {int(found.head['words']):,} words for "
        f"{found.positions:,} positions: {fmt(_at_peak(e, found))} at the peak.",
        saves=simulated(high),
    )


def _at_peak(e: Evidence, found: Logits) -> int:
    rows = found.rows[e.live_at_peak(found.rows)]
    return int(e.card_ledger.allocations.requested[rows].sum())


RULE = Rule(name="logits", text=__doc__, check=check)
