"""The optimizer's state dominates.

What it sees
    Optimizer state that is 30% of the peak or more where memory is short; and a peak inside
    optimizer.step() that is made of its temporaries.
What it costs
    Adam and AdamW keep twice the bytes of the float32 weights, for as long as they train. The
    foreach implementation holds one set of parameter-sized temporaries more while it steps.
Do instead
    `fused=True` (the same mathematics, no temporaries); an 8-bit Adam (a quarter of the state); SGD
    with momentum (half of it); Adafactor (next to none).
When to ignore it
    Fused is free. The others change how the model trains: try them on a short run first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.model import Finding
from nbmem.report.tips.rule import Rule, fmt, fmt_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.report.tips.evidence import Evidence

SHARE = 0.3
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch that have a fused implementation on CUDA."""
TWO_COPIES = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


def check(e: Evidence) -> Iterator[Finding]:
    """Report the step's temporaries first, then the optimizer's state.

    Removing the temporaries has no price.
    """
    optimizer, name = e.optimizer(), e.optimizer_code()
    if optimizer is None:
        return
    yield from _fused(e, optimizer)
    state = e.report.ledger_at_peak[Category.OPTIMIZER_STATE]
    if not e.dominates(state, SHARE) or optimizer["class"] not in TWO_COPIES:
        return
    low, high = state // 2, 3 * state // 4
    yield Finding(
        rule=RULE.name,
        title=f"Less optimizer state than {optimizer['class']}'s: {fmt_range(low, high)}",
        evidence=f"{optimizer['class']} keeps {fmt(state)} of the "
        f"{fmt(e.report.peak.allocated)} allocated at the peak. 8-bit: about {fmt(state // 4)}; "
        f"SGD with momentum: {fmt(state // 2)}; Adafactor: next to nothing.",
        low=low,
        high=high,
        ground="estimated",
        code=None
        if name is None
        else "import bitsandbytes as bnb   # pip install bitsandbytes\n\n"
        f'groups = [{{"params": g["params"], "lr": g["lr"]}} for g in {name}.param_groups]\n'
        f"{name} = bnb.optim.AdamW8bit(groups)   # before the first step: its state begins anew",
    )


def _fused(e: Evidence, optimizer: dict[str, Any]) -> Iterator[Finding]:
    card_ledger = e.card_ledger
    top = card_ledger.peak(0, card_ledger.events)
    phase = int(card_ledger.phases.of(np.array([top - 1], np.int64))[0])
    if phase < 0 or card_ledger.phases.spans[phase][1].name != "optimizer":
        return
    if optimizer["class"] not in FUSED or optimizer["switches"].get("fused"):
        return
    mine = np.isin(card_ledger.born_in, np.flatnonzero(card_ledger.phases.names == "optimizer"))
    rows = np.flatnonzero(mine & (card_ledger.category == Category.TEMPORARIES))
    saves = e.report.peak.allocated - e.peak_without(rows)
    if e.worth(saves):
        name = e.optimizer_code()
        yield Finding(
            rule=RULE.name,
            title=f"`fused=True` in {optimizer['class']}: {fmt(saves)} less at the peak",
            evidence="The peak lies inside optimizer.step(), and temporaries of the foreach "
            "implementation make it; the fused one has none.",
            low=saves,
            high=saves,
            ground="simulated",
            code=None
            if name is None
            else "import torch\n\n"
            f'groups = [{{**g, "fused": True, "foreach": False}} for g in {name}.param_groups]\n'
            f"{name} = torch.optim.{optimizer['class']}(groups, fused=True)"
            "   # before the first step: its state begins anew",
        )


RULE = Rule(name="optimizer_state", text=__doc__, check=check, when="short")
