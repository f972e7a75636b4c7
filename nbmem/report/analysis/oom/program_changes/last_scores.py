"""Try scores of the last position alone, where a prompt failed.

A causal language model of transformers scores each position's next word. Whoever reads only the
last one's says so with `logits_to_keep=1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.report.analysis.library_calls import library_model
from nbmem.report.analysis.oom.program_changes.trainer_evaluation import is_in_evaluation
from nbmem.report.analysis.program_names import largest_model
from nbmem.report.model import Finding
from nbmem.report.savings import estimated

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.trial import Outcome, Trial


def last_scores(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield `logits_to_keep=1`, where the layer that scores words failed."""
    case = trial.case
    model = largest_model(case.card_ledger.session)
    inner, head = library_model(model), (model or {}).get("head")
    if trial.phase != "inference" or case.refusal is None or is_in_evaluation(trial):
        return
    if model is None or not head or inner is None or not inner["keeps"]:
        return
    if not (case.refusal.layer or "").startswith(f"{model['name']}.{head['path']} "):
        return
    least = int(head["words"])  # bytes of one position, at the least
    then = trial.then.changed(
        lambda block: block._replace(size=least) if block.size == case.size else block
    )
    yield (
        Finding(
            rule="last_logits",
            title=f"Score only the last position: about {format_bytes(case.size)} less",
            evidence=f"The scores of {least:,} words for each position of the prompt are "
            f"{format_bytes(case.size)}; the next word needs those of the last one alone.",
            **estimated(case.size),
            code="logits_to_keep=1   # as an argument of the model's call, where only "
            "`.logits[:, -1]` is read",
        ),
        trial.now(then=then),
    )
