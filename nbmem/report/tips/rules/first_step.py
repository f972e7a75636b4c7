"""The first optimizer step will add the optimizer's state.

What it sees
    A backward, and an optimizer that has no state yet: Adam and its kind make two tensors for each
    parameter at their first step, SGD with momentum one.
What it costs
    The state stays for good, so the second iteration needs that much more than the first; a batch
    that just fits before the first step does not fit behind it.
Do instead
    Choose the batch after one whole iteration. If it will not fit: an optimizer with less state
    (`%nbmem explain optimizer_state`).
When to ignore it
    The card has room for it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from nbmem.report.analysis.program_names import code_name
from nbmem.report.analysis.what_if import try_more
from nbmem.report.model import Finding
from nbmem.report.tips.rule import Rule, fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.report.tips.evidence import Evidence

COPIES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "RMSprop": 1}
"""State tensors of a parameter's shape that torch.optim makes at the first step.

https://github.com/pytorch/pytorch/tree/v2.13.0/torch/optim, `_init_group` of each
"""
STEP_BYTES = 4
"""The step counter of a fused or capturable optimizer is on the card; others are on the CPU."""


def check(e: Evidence) -> Iterator[Finding]:
    """Find optimizers that have gradients and never stepped."""
    if not e.phases("backward"):
        return
    for optimizer in e.optimizers:
        sizes = state_of(optimizer)
        if optimizer["states"] or not sizes or not any(optimizer["with_gradient"]):
            continue
        adds, takes = try_more(e.card_ledger, sizes)
        if not e.worth(adds):
            continue
        free = e.report.ledger_at_end.total_bytes - e.report.ledger_at_end.used
        room = "" if not e.card_known or takes <= free else " The card has no room for it as it is."
        name = code_name(optimizer)
        yield Finding(
            rule=RULE.name,
            title=f"The first `{name or 'optimizer'}.step()` will add {fmt(adds)} of state that "
            "stays",
            evidence=f"{optimizer['class']} has no state yet for {len(optimizer['parameters'])} "
            f"parameters; it makes {len(sizes)} tensors at its first step, for which torch takes "
            f"{fmt(takes)} from the driver.{room}",
            low=adds,
            high=adds,
            ground="simulated",
            code=f"{name}.step()   # once, before you choose the batch" if name else None,
        )


def state_of(optimizer: dict[str, Any]) -> list[int]:
    """Return the bytes of each tensor that the first step makes and keeps.

    In order; empty if not known.
    """
    kind, switches = optimizer["class"], optimizer["switches"]
    if not optimizer["torch"]:
        return []
    sizes = []
    for size, shape, wanted in zip(
        optimizer["parameters"], optimizer["shapes"], optimizer["with_gradient"], strict=True
    ):
        if not wanted:
            continue
        if kind == "SGD":
            sizes += [size] if switches.get("momentum") else []
        elif kind == "Adafactor":
            sizes += _factors(size, shape)
        elif kind in COPIES:
            if switches.get("fused") or switches.get("capturable"):
                sizes.append(STEP_BYTES)
            sizes += [size] * (COPIES[kind] + _more(kind, switches))
    return sizes


def _more(kind: str, switches: dict[str, Any]) -> int:
    if kind == "RMSprop":
        return bool(switches.get("momentum")) + bool(switches.get("centered"))
    return int(bool(switches.get("amsgrad")))


def _factors(size: int, shape: list[int]) -> list[int]:
    """Return the bytes of Adafactor's row and column of a matrix."""
    if len(shape) < 2:
        return [size]
    item = size // max(1, prod(shape))
    return [item * prod(shape[:-1]), item * prod(shape[:-2]) * shape[-1]]


RULE = Rule(name="first_step", text=__doc__, check=check)
