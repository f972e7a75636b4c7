"""One FSDP unit holds the whole model, so all of it is gathered at once.

What it sees
    A module under `fully_shard` whose largest unit has more than half of the parameters, although
    it has four equal blocks or more.
What it costs
    While it runs, each rank holds all weights, in backward beside all gradients and the input of
    their reduce-scatter: what is cut is the optimizer's state alone.
Do instead
    `fully_shard(block)` for each block, before `fully_shard(model)`: then two blocks are gathered
    at a time.
When to ignore it
    The model is small beside its activations, or its collectives are bound by their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.session.categories import Category
from nbmem.report.analysis.program_names import code_name
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

LARGE = 0.5
"""Part of a model from which a unit is too large."""
FEWEST = 4
"""Number of blocks below which little is saved: two are gathered at a time, and two reduced."""
AT_A_TIME = 4
"""Blocks that are whole at one moment: the current and the next one, and two to be reduced."""


def check(e: Evidence) -> Findings:
    """Find an FSDP unit that has more than half of a model."""
    for module in e.modules:
        units = module.get("fsdp_units") or [0]
        blocks = max(module["blocks"], key=lambda found: found["count"], default=None)
        whole = sum(units)
        if blocks is None or blocks["count"] < FEWEST or max(units) <= LARGE * whole:
            continue
        low, high = _saved(e, whole // int(blocks["count"]))
        if not e.matters(low):
            continue
        yield RULE.finding(
            title=f"`fully_shard` each block of {module['name']}: {fmt_range(low, high)} less",
            evidence=f"{fmt(max(units))} of its {fmt(whole)} are one unit, which is gathered as a "
            f"whole; at the peak {fmt(e.report.ledger_at_peak[Category.COMMUNICATION])} were held "
            f"for communication. It has {blocks['count']} equal blocks.",
            saves=estimated(low, high),
            code=_code(code_name(module), blocks),
        )


def _saved(e: Evidence, block: int) -> tuple[int, int]:
    """Return the least and the most bytes that smaller units would save."""
    least = most = 0
    for row in e.phases("forward", "backward", "optimizer", "inference", "zero_grad", "load"):
        held = row.ledger_at_peak
        sent, whole = held[Category.COMMUNICATION], held[Category.GRADIENTS]
        least = max(least, held.allocated - max(sent - AT_A_TIME * block, 0))
        most = max(most, held.allocated - max(sent + whole - block, 0))
    peak = e.report.peak.allocated
    return max(peak - least, 0), max(peak - most, 0)


def _code(name: str | None, blocks: dict[str, Any]) -> str | None:
    """Return code that shards each block, or None.

    None if the notebook has no name for the model.
    """
    if name is None:
        return None
    path = f".{blocks['path']}" if blocks["path"] else ""
    return (
        "from torch.distributed.fsdp import fully_shard\n\n"
        f"for block in {name}{path}:  # before fully_shard({name})\n    fully_shard(block)"
    )


RULE = Rule(name="fsdp_unit", text=__doc__, check=check)
