"""Gradient checkpointing is on, and eval mode switches it off.

What it sees
    A model whose modules have `gradient_checkpointing` on, as those of transformers and diffusers,
    that was called in eval mode with a graph, and kept the activations of its blocks for backward.
    Nothing was recomputed. It speaks if the peak is a quarter lower with checkpointing, or a tenth
    where that is 1% of the card.
What it costs
    All activations of the blocks: their forward asks for `self.training` as well.
    `from_pretrained` returns a model in eval mode, and a frozen part is often set to it.
Do instead
    `model.train()` before the training, also for a frozen model through which a gradient flows.
    Weights are trained or frozen by `requires_grad`, not by the mode.
When to ignore it
    The model has dropout or batch normalization that must stay as in evaluation. Then set these
    modules alone to eval mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.report.analysis.block_activations import block_activations
from nbmem.report.analysis.checkpointed_modules import is_switched_off
from nbmem.report.analysis.program_names import blocks_of
from nbmem.report.tips.detectors.checkpointed_blocks import checkpointing_saving
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

    _Saving = tuple[int, int, dict[str, Any], str]


def check(e: Evidence) -> Findings:
    """Find the model that kept what it should have recomputed."""
    if e.phases("recompute"):
        return
    found = [_saving(e, model) for model in e.modules if is_switched_off(e.session, model)]
    low, high, model, kind = max(filter(None, found), key=_least, default=(0, 0, {}, ""))
    if not e.is_needless(low):
        return
    path = str(model["checkpointed"]["evaluating"])
    name = ".".join(filter(None, (str(model["name"]), path)))
    code = blocks_of(model, path)
    yield RULE.finding(
        title=f"`{name}` has gradient checkpointing on and is in eval mode, which switches it off: "
        f"`{code or name}.train()`, {fmt_range(low, high)} less",
        evidence=f"Each {kind} of `{model['name']}` kept its activations for backward, {fmt(high)} "
        f"of the {fmt(e.report.peak.allocated)} allocated at the peak, and nothing was recomputed: "
        "checkpointing asks for `self.training`.",
        saves=estimated(low, high),
        code=None if code is None else f"{code}.train()   # before the training",
    )


def _saving(e: Evidence, model: dict[str, Any]) -> _Saving | None:
    """Return what checkpointing of the largest list saves, and of all lists."""
    one = block_activations(e.card_ledger, model)
    every = block_activations(e.card_ledger, model, every=True)
    if one is None or every is None:
        return None
    low, high = checkpointing_saving(e, one)[0], checkpointing_saving(e, every)[1]
    return low, high, model, one.kind


def _least(saving: _Saving) -> int:
    return saving[0]


RULE = Rule(name="checkpointing_off", text=__doc__, check=check)
