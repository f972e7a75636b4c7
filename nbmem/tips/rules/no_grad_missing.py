"""A forward pass of evaluation keeps activations for a backward that never comes.

What it sees
    A module in eval mode that was called with gradients on, and no backward before the next call;
    or three and more forward passes with gradients in a recording without any backward at all.
What it costs
    All activations of the pass, as in training, and the time to record the graph.
Do instead
    `with torch.no_grad():` (or `torch.inference_mode()`) around validation. `model.eval()` alone
    changes dropout and batch norm, not what is kept.
When to ignore it
    You need gradients with respect to the inputs (saliency, adversarial examples).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.categories import Category
from nbmem.report import Finding
from nbmem.tips.rule import Rule, say, saying
from nbmem.tips.rules import graph_kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.tips.evidence import Evidence

FEWEST = 3
"""Passes without a backward that show, for a model in training mode, that none will come."""


def check(e: Evidence) -> Iterator[Finding]:
    """Forward passes that no backward follows, and what they kept."""
    passes = _passes(e) if any(c["grad"] for c in e.calls) else []
    evaluated = sum(c["count"] for c in e.calls if c["grad"] and not c["training"])
    trains = bool(e.phases("backward"))
    if not passes or not (evaluated or (len(passes) >= FEWEST and not trains)):
        return
    if not evaluated and graph_kept.passes_kept(e) >= graph_kept.FEWEST:
        return  # its tip says more
    low, high, phase = max(_kept(e, index, passes) for index in passes)
    if not e.worth(high):
        return
    model = e.model_name()
    mode = f"{model} was in eval mode" if evaluated else "There was no backward"
    step = e.books.phases.spans[phase][1].step
    where = "" if step is None else f" (the largest in step {step})"
    yield Finding(
        rule=RULE.name,
        title=f"Evaluate under torch.no_grad(): {saying(low, high)} less",
        evidence=f"{mode}, but gradients were on in {len(passes)} forward passes{where}: they kept "
        f"{say(high)} for a backward that never came.",
        low=low,
        high=high,
        ground="estimated",
        code=f"{model}.eval()\nwith torch.no_grad():\n    output = {model}(batch)",
    )


def _passes(e: Evidence) -> list[int]:
    """Forward phases that neither a backward nor anything like it follows."""
    names = [span.name for _, span in e.books.phases.spans]
    return [
        index
        for index, name in enumerate(names)
        if name == "forward"
        and next((n for n in names[index + 1 :] if n != "input"), "forward")
        in ("forward", "inference")
    ]


def _kept(e: Evidence, phase: int, passes: list[int]) -> tuple[int, int, int]:
    """(at least, at most, phase): what such passes made and that lived at the peak of one.

    Without a graph the operator that runs there still has its input and its output, and the result
    of the pass before may still have a name: the three largest of them may stay.
    """
    a, span = e.books.followed.allocations, e.books.phases.spans[phase][1]
    device = e.session.devices.index(e.trace)
    top = e.books.peak(span.first[device], span.last[device])
    made = np.isin(e.books.born_in, passes) & (e.books.category != Category.WORKSPACE)
    mine = np.flatnonzero(made & (a.born < top) & (a.freed >= top))
    blocks = np.sort(a.block[mine])[::-1]
    whole = int(blocks.sum())
    return max(0, whole - int(blocks[:3].sum())), max(0, whole - int(blocks[:1].sum())), phase


RULE = Rule(name="no_grad_missing", text=__doc__, check=check)
