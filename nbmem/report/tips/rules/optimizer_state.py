"""The optimizer's state dominates.

What it sees
    Optimizer state that is 30% of the peak or more where memory is short. And a peak inside
    optimizer.step() that is made of its temporaries, where memory is short or they are 5% of the
    card.
What it costs
    Adam and AdamW keep twice the bytes of the weights that they train, `amsgrad` three times. While
    it steps, the foreach implementation holds temporaries of all parameters, and the one with
    `foreach=False` those of one.
Do instead
    `fused=True` (the same mathematics, no temporaries); an 8-bit Adam (a quarter of float32 state,
    half of bfloat16's); SGD with momentum (half of it); Adafactor (next to none).
When to ignore it
    Fused is free. The others change how the model trains: try them on a short run first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.optimizer_state import can_be_fused, fused_code
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.3
TWO_COPIES = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


def check(e: Evidence) -> Findings:
    """Report the step's temporaries first, then the optimizer's state.

    Removing the temporaries has no price, so it is proposed alone at first.
    """
    optimizer, name = e.optimizer(), e.optimizer_code()
    if optimizer is None:
        return
    fused = list(_fused(e, optimizer))
    yield from fused
    if (fused or e.short is None) and not e.everything:
        return  # what trains otherwise comes after what has no price
    copies = 3 if optimizer["switches"].get("amsgrad") else 2
    state = e.report.ledger_at_peak[Category.OPTIMIZER_STATE]
    if len(e.optimizers) > 1:
        state = min(state, copies * sum(optimizer["parameters"]))
    if not e.dominates(state, SHARE) or optimizer["class"] not in TWO_COPIES:
        return
    momentum = state // copies
    eight_bit = min(state, 2 * momentum * _elements(optimizer) // sum(optimizer["parameters"]))
    low, high = sorted((state - momentum, state - eight_bit))
    yield RULE.finding(
        title=f"Less optimizer state than {optimizer['class']}'s: {fmt_range(low, high)}",
        evidence=f"{optimizer['class']} keeps {fmt(state)} of the "
        f"{fmt(e.report.peak.allocated)} allocated at the peak. 8-bit: about {fmt(eight_bit)}; "
        f"SGD with momentum: {fmt(momentum)}; Adafactor: next to nothing.",
        saves=estimated(low, high),
        code=None
        if name is None
        else "import bitsandbytes as bnb   # pip install bitsandbytes\n\n"
        f'groups = [{{"params": g["params"], "lr": g["lr"]}} for g in {name}.param_groups]\n'
        f"{name} = bnb.optim.AdamW8bit(groups)   # before the first step: its state begins anew",
    )


def _fused(e: Evidence, optimizer: dict[str, Any]) -> Findings:
    card_ledger = e.card_ledger
    top = card_ledger.peak(0, card_ledger.events)
    phase = int(card_ledger.phases.of(np.array([top - 1], np.int64))[0])
    if phase < 0 or card_ledger.phases.spans[phase][1].name != "optimizer":
        return
    if not can_be_fused(optimizer):
        return
    mine = np.isin(card_ledger.born_in, np.flatnonzero(card_ledger.phases.names == "optimizer"))
    rows = np.flatnonzero(mine & (card_ledger.category == Category.TEMPORARIES))
    saves = e.peak_saving(rows)
    if e.matters(saves):
        name = e.optimizer_code()
        yield RULE.finding(
            title=f"`fused=True` in {optimizer['class']}: {fmt(saves)} less at the peak",
            evidence="The peak lies inside optimizer.step(), and temporaries of "
            f"{_implementation(optimizer['switches'])} make it; the fused one has none.",
            saves=simulated(saves),
            code=None if name is None else fused_code(name, optimizer),
        )


def _elements(optimizer: dict[str, Any]) -> int:
    return sum(math.prod(shape) for shape in optimizer["shapes"])


def _implementation(switches: dict[str, Any]) -> str:
    """Name the implementation that an optimizer's switches choose on CUDA."""
    if switches.get("foreach") is False:
        return "the implementation that steps each parameter alone (foreach=False)"
    return f"the foreach implementation{' (the default)' * (switches.get('foreach') is None)}"


RULE = Rule(name="optimizer_state", text=__doc__, check=check)
