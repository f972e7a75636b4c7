"""The optimizer's state dominates.

What it sees
    Optimizer state that is 30% of the peak or more where memory is short. A peak inside
    optimizer.step() that is made of its temporaries, where memory is short or they are 5% of the
    card. And an optimizer that is not of torch and keeps three or more tensors for each weight
    (Prodigy, Adan), where what it keeps beside AdamW's two is a quarter of the peak and 2% of the
    card.
What it costs
    Adam and AdamW keep twice the bytes of the weights that they train, `amsgrad` three times. While
    it steps, the foreach implementation holds temporaries of all parameters, and the one with
    `foreach=False` those of one.
Do instead
    `fused=True` (the same mathematics, no temporaries); an 8-bit Adam (a quarter of float32 state,
    half of bfloat16's); SGD with momentum (half of it); Adafactor (next to none). Of an optimizer
    with more: its own setting for less state, such as Prodigy's `slice_p=11`, or AdamW.
When to ignore it
    Fused is free. The others change how the model trains: try them on a short run first.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import VIEW, without_shape
from nbmem.report.analysis.optimizer_state import can_be_fused, fused_code
from nbmem.report.tips.evidence import LARGE_PART, MIN_SHARE, Evidence
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints

SHARE = 0.3
ALL_WEIGHTS = 0.9
"""Part of the weights' bytes from which a key of the state has a tensor for each weight."""
AS_ADAM = 2
"""Tensors for each weight that AdamW keeps."""
OF_ADAM = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_OF_WEIGHTS = re.compile(r"(?:^|_)(?:master|fp32|ema|swa|polyak|shadow)(?:_|$)")
"""Names of copies of the weights that have a purpose: in float32, or averaged."""
_KEY = re.compile(r"(?:: (\w+)|\['(\w+)'\])$")
"""The key behind the weight's name, or behind the state's number."""
_AS_ADAMW = """import torch

own = {{"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8}}   # AdamW has a learning rate of its own
{name} = torch.optim.AdamW([{{**group, **own}} for group in {name}.param_groups])"""
TWO_COPIES = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


def check(e: Evidence) -> Findings:
    """Report the step's temporaries first, then the optimizer's state.

    Removing the temporaries has no price, so it is proposed alone at first.
    """
    optimizer, name = e.optimizer(), e.optimizer_code()
    if optimizer is None:
        return
    yield from _many_copies(e, optimizer, name)
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


def _many_copies(e: Evidence, optimizer: dict[str, Any], name: str | None) -> Findings:
    """Find an optimizer that keeps more for each weight than AdamW does.

    Copies of the weights in float32 and averages of them are left alone.
    """
    if optimizer["torch"] or len(e.optimizers) > 1:
        return
    size, keys = e.card_ledger.allocations.block, _rows_by_key(e)
    least = ALL_WEIGHTS * sum(optimizer["parameters"])
    copies = {key: rows for key, rows in keys.items() if size[rows].sum() >= least > 0}
    beside = [key for key in copies if key not in OF_ADAM and not _OF_WEIGHTS.search(key)]
    beside = beside[max(0, AS_ADAM - sum(key in OF_ADAM for key in copies)) :]
    if not beside:
        return
    rows = np.concatenate([copies[key] for key in beside])
    gain = int(size[rows].sum())
    part = e.dominates(e.peak_saving(rows), LARGE_PART)
    if not part or not (e.everything or e.matters(gain, MIN_SHARE)):
        return
    total = sum(int(size[rows].sum()) for rows in copies.values())
    yield RULE.finding(
        title=f"{optimizer['class']} keeps {len(copies)} tensors for each weight, {fmt(total)}: "
        f"AdamW keeps {AS_ADAM}, {fmt(gain)} less",
        evidence=f"The state of each weight has {', '.join(copies)}, all as large as the weights. "
        f"Some optimizers have a setting for less of it; without {' and '.join(beside)} the state "
        f"is {fmt(total - gain)}.",
        saves=estimated(gain),
        code=None if name is None else _AS_ADAMW.format(name=name),
    )


def _rows_by_key(e: Evidence) -> dict[str, Ints]:
    """Return the optimizer's state at the end, by its keys."""
    ledger, a = e.card_ledger, e.card_ledger.allocations
    mine = (ledger.category == Category.OPTIMIZER_STATE) & (a.freed >= ledger.events)
    found: dict[str, list[int]] = {}
    for row in np.flatnonzero(mine).tolist():
        key = _KEY.search(without_shape((ledger.name(row) or "").removesuffix(VIEW)))
        if key is not None:
            found.setdefault(key[1] or key[2], []).append(row)
    return {key: np.array(rows, np.int64) for key, rows in found.items()}


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
