"""An activation function makes the peak: it writes a second tensor.

What it sees
    A forward at whose highest moment a new tensor lies beside one of the same size that goes right
    after it, in a model with ReLUs (or their kind) that are not in place.
What it costs
    One activation more, for that moment. What autograd keeps stays the same: a ReLU keeps its
    result and not its input.
Do instead
    `nn.ReLU(inplace=True)`. ReLU, LeakyReLU and ELU may be in place; SiLU and GELU may not.
When to ignore it
    The layer before needs its own result in backward (torch then raises an error that says so).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import Action, Stack
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

NEAR = 3
"""Events after an allocation within which the input is freed."""


def check(e: Evidence) -> Findings:
    """Compute the peak without the second tensors of activation functions."""
    model = e.model()
    if model is None or not model["relu_not_inplace"]:
        return
    card_ledger = e.card_ledger
    top = card_ledger.peak(0, card_ledger.events)
    phase = int(card_ledger.phases.of(np.array([top - 1], np.int64))[0])
    if phase < 0 or card_ledger.phases.spans[phase][1].name not in ("forward", "inference"):
        return
    known = bool(e.session.stacks)
    curve = card_ledger.allocated.copy()
    for row, until in _pairs(e):
        a = card_ledger.allocations
        curve[int(a.allocated_at[row]) + 1 : until + 1] -= a.block[row]
    saves = e.report.peak.allocated - int(curve.max())
    if not e.worth(saves):
        return
    low = saves if known else 0
    name = (model.get("relu_classes") or ["ReLU"])[0]
    yield RULE.finding(
        title=f"`nn.{name}(inplace=True)`: {fmt_range(low, saves)} less at the peak",
        evidence=f"{model['relu_not_inplace']} activation functions of {e.model_name()} are not in "
        f"place; one wrote {fmt(saves)} at the peak beside an input that then went.",
        saves=(simulated if known else estimated)(low, saves),
        code=None
        if e.model_code() is None
        else f"import torch\n\nfor module in {e.model_code()}.modules():\n"
        "    if isinstance(module, (torch.nn.ReLU, torch.nn.LeakyReLU, torch.nn.ELU)):\n"
        "        module.inplace = True",
    )


def _pairs(e: Evidence) -> Iterator[tuple[int, int]]:
    """Yield each second tensor's row and where its input is freed."""
    a, events = e.card_ledger.allocations, e.trace.events
    rows = np.flatnonzero(a.allocated_at >= 0)
    if e.session.stacks:
        rows = np.intersect1d(rows, e.rows_with_stack(_by_relu))
    gone = {
        int(at): int(events.size[at])
        for at in np.flatnonzero(events.action == Action.FREE_REQUESTED).tolist()
    }
    for row in rows.tolist():
        born = int(a.allocated_at[row])
        for at in range(born + 1, born + 1 + NEAR):
            if gone.get(at) == int(a.requested[row]):
                yield row, at
                break


def _by_relu(stack: Stack) -> bool:
    return any(f.function in ("relu", "leaky_relu", "elu") for f in stack[:2])


RULE = Rule(name="inplace_activations", text=__doc__, check=check, when="short")
