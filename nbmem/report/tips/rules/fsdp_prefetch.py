"""FSDP gathers blocks for backward long before they are used.

What it sees
    FSDP2 whose backward asks for a block's all-gather before the one before it was copied out: two
    are on their way beside the block in use, as `set_modules_to_backward_prefetch` with several
    modules does. Where memory is short, or all tips are asked for, also one on its way, which is
    what FSDP does by default.
What it costs
    The bytes of each block that is gathered and waits.
Do instead
    Prefetch one block at a time, FSDP's default: `set_modules_to_backward_prefetch([])`. Where
    memory is short none: `unit.set_modules_to_backward_prefetch([unit])`; then backward waits for
    each all-gather.
When to ignore it
    The network is slow, and the card has room.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from nbmem.report.analysis.fsdp_gathers import Gather, Move, allocated_with, find_gathers
from nbmem.report.analysis.program_names import code_name, largest_fsdp_module
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find blocks that FSDP gathers too early for backward.

    Those that come two ahead, or else the next ones.
    """
    pairs = list(_pairs(e))
    a = e.card_ledger.allocations
    early = [
        Move(later.buffer, int(a.freed[now.buffer]), int(a.freed[later.buffer]))
        for now, later in pairs
        if int(a.allocated_at[later.buffer]) < int(a.allocated_at[now.whole[0]])
    ]
    ahead = [
        Move(later.buffer, int(a.allocated_at[later.whole[0]]) - 1, int(a.freed[later.buffer]))
        for now, later in pairs
        if int(a.allocated_at[later.buffer]) < int(a.freed[list(now.whole)].min())
    ]
    moves = early or ahead
    if not moves or not (early or e.short or e.everything):
        return
    now = int(e.card_ledger.allocated.max())
    saved = now - int(allocated_with(e.card_ledger, moves).max())
    if not e.matters(saved):
        return
    size = max(int(a.requested[move.row]) for move in moves)
    how = "one block at a time ahead" if early else "each block when backward needs it"
    beside = "Two blocks or more are" if early else "The next block is"
    yield RULE.finding(
        title=f"Let FSDP gather {how}: {fmt(saved)} less",
        evidence=f"{beside} gathered in backward while another one is used: up to {fmt(size)} "
        f"each, which wait. The peak is {fmt(now)}, and {fmt(now - saved)} with "
        f"{'one' if early else 'none'} ahead.",
        saves=simulated(saved),
        code=_code(e, "[]" if early else "[unit]"),
    )


def _pairs(e: Evidence) -> Iterator[tuple[Gather, Gather]]:
    """Yield pairs of units that one backward uses one after another."""
    spans = [span for _, span in e.card_ledger.phases.spans]
    for now, later in pairwise(find_gathers(e.card_ledger)):
        if now.phase == later.phase and spans[now.phase].name == "backward":
            yield now, later


def _code(e: Evidence, wanted: str) -> str | None:
    """Return code that sets the prefetch of all units, or None.

    None if the notebook has no name for the model.
    """
    name = code_name(largest_fsdp_module(e.session))
    if name is None:
        return None
    return (
        "from torch.distributed.fsdp import FSDPModule\n\n"
        f"for unit in {name}.modules():\n"
        "    if isinstance(unit, FSDPModule):\n"
        f"        unit.set_modules_to_backward_prefetch({wanted})"
    )


RULE = Rule(name="fsdp_prefetch", text=__doc__, check=check)
