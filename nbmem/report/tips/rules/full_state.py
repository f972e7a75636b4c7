"""A full state dict was gathered on the card.

What it sees
    Whole tensors that DTensor gathered between the steps of an FSDP2 model, and that lay on the
    card at once: half of the model's parameters or more, where they make the peak.
What it costs
    Each rank that gathers so holds the model as if it were not sharded.
Do instead
    `StateDictOptions(full_state_dict=True, cpu_offload=True)`: each tensor goes to the host before
    the next is gathered, and only rank 0 keeps them. By hand `.full_tensor().cpu()`. A sharded
    checkpoint (`torch.distributed.checkpoint.save`) gathers nothing.
When to ignore it
    You need the whole model on the card, and it fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import ALL_GATHER, DTENSOR
from nbmem.report.analysis.fsdp_gathers import Move, allocated_with
from nbmem.report.analysis.program_names import code_name, largest_fsdp_module
from nbmem.report.ledger.observations import rows_at
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.5
"""Part of the model's bytes that must have been live at once."""
_STEPS = ("forward", "backward", "optimizer", "inference")


def check(e: Evidence) -> Findings:
    """Find whole tensors that were gathered between the steps.

    The saving is the fall of the peak if each goes to the host at once.
    """
    model = largest_fsdp_module(e.session)
    rows = _gathered(e) if model is not None else np.zeros(0, np.int64)
    if model is None or not len(rows):
        return
    a, whole = e.card_ledger.allocations, sum(model["fsdp_units"])
    born = {int(row): int(a.allocated_at[row]) for row in rows}
    offloaded = [Move(row, at, at + 1) for row, at in born.items()]
    without = allocated_with(e.card_ledger, [Move(row) for row in born])
    held = int((e.card_ledger.allocated - without).max())
    now = e.report.peak.allocated
    saved = now - int(allocated_with(e.card_ledger, offloaded).max())
    if held < SHARE * whole or not e.matters(saved):
        return
    yield RULE.finding(
        title=f"Gather the full state dict into the host's memory: {fmt(saved)} less",
        evidence=f"Between the steps {len(rows)} whole tensors were gathered on the card, up to "
        f"{fmt(held)} of them at once; the parameters of {model['name']} are {fmt(whole)}, of "
        "which this rank has its shards.",
        saves=simulated(saved),
        code=_code(code_name(model)),
    )


def _gathered(e: Evidence) -> Ints:
    """Return rows of what DTensor gathered outside of steps.

    That is outside of forward, backward, optimizer and inference.
    """
    seen = e.trace.storage_labels
    names = [
        number
        for number, text in enumerate(e.session.names)
        if text.startswith(f"{DTENSOR} {ALL_GATHER} ")
    ]
    mine = np.isin(seen.name, names) & (seen.category == Category.COMMUNICATION)
    events = e.card_ledger.events
    at = rows_at(e.card_ledger.allocations, seen.addr[mine], seen.position[mine], events)
    rows = np.unique(at[at >= 0])
    found: Ints = rows[~e.card_ledger.phases.named(e.card_ledger.born_in[rows], *_STEPS)]
    return found


def _code(name: str | None) -> str | None:
    """Return code that takes the state dict in host memory, or None.

    None if the notebook has no name for the model.
    """
    if name is None:
        return None
    return (
        "from torch.distributed.checkpoint.state_dict import (\n"
        "    StateDictOptions, get_model_state_dict)\n\n"
        "options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
        f"state = get_model_state_dict({name}, options=options)"
    )


RULE = Rule(name="full_state", text=__doc__, check=check)
