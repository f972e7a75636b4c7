"""Gradients lie on the card where nothing reads them.

What it sees
    Gradients of the step before that still live at the highest moment of a forward, a backward or
    an evaluation: zero_grad(set_to_none=False), or zero_grad() at the head of the loop and an
    evaluation behind it. It is shown if they are 4% of the peak and 1% of the card, or memory is
    short. Those of a CUDA graph have to stay where they are.
What it costs
    As much as the weights that are trained, at the moment when activations need the room.
Do instead
    `optimizer.zero_grad()` behind `optimizer.step()`; since torch 2.0 it sets them to None.
When to ignore it
    You accumulate gradients over several batches on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.program_names import zero_grad_code
from nbmem.report.analysis.what_if import try_freeing
from nbmem.report.tips.detectors.untrained_modules import unstepped_gradients
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.04
"""Least part of the peak for a tip, if the card has room."""
OF_THE_CARD = 0.01
"""Least part of the card for a tip: less is not worth a search."""


def check(e: Evidence) -> Findings:
    """Find gradients at the peak made before the last optimizer step."""
    card_ledger = e.card_ledger
    top = card_ledger.peak(0, card_ledger.events)
    phase = int(card_ledger.phases.of(np.array([top - 1], np.int64))[0])
    spans = [span for _, span in card_ledger.phases.spans]
    stepped = [card_ledger.bounds(s)[1] for s in spans[: max(0, phase)] if s.name == "optimizer"]
    if not stepped or spans[phase].name not in ("forward", "backward", "inference"):
        return
    a = card_ledger.allocations
    old = (
        (card_ledger.category == Category.GRADIENTS)
        & (a.allocated_at < stepped[-1])
        & (a.freed >= top)
    )
    old &= ~_not_cleared(e)
    ends = np.array([card_ledger.bounds(s)[1] for s in spans if s.name == "optimizer"], np.int64)
    rows, gone = _too_late(e, ends)
    there = int(a.block[old].sum())
    size = min(there, _peak_reduction(e, rows, gone))
    relevant = e.everything or e.short is not None
    if not e.matters(size, OF_THE_CARD) or not (relevant or e.dominates(size, SHARE)):
        return
    replayed = try_freeing(card_ledger, rows, gone)
    size = size if replayed is None else replayed
    where = spans[phase].name
    anew = _made_anew(e) if where == "backward" else 0
    optimizer = e.optimizer_code() or "optimizer"
    step = "" if spans[phase].step is None else f", step {spans[phase].step}"
    yield RULE.finding(
        title=f"`{optimizer}.zero_grad()` behind `step()`: {fmt_range(max(0, size - anew), size)} "
        "less at the peak",
        evidence=f"At the peak (in {where}{step}) {fmt(there)} of gradients of the step before "
        "were still there; nothing reads them until the next step.",
        saves=estimated(max(0, size - anew), size) if anew else simulated(size),
        code=zero_grad_code(e.optimizer_code()),
    )


def _not_cleared(e: Evidence) -> Mask:
    """Return a mask of gradients that zero_grad() does not release."""
    return _in_private_pool(e) | e.in_gradient_cycle | e.once(unstepped_gradients)


def _in_private_pool(e: Evidence) -> Mask:
    """Return a mask of allocations in pools of CUDA graphs and MemPools."""
    segments, addr = e.trace.end.segments, e.card_ledger.allocations.addr
    private = segments[segments.pool != 0]
    if not len(private):
        return np.zeros(len(addr), bool)
    row = np.searchsorted(private.addr, addr, side="right") - 1
    inside: Mask = (row >= 0) & (addr < private.addr[row] + private.size[row])
    return inside


def _too_late(e: Evidence, ends: Ints) -> tuple[Ints, Ints]:
    """Return gradients that outlive the next optimizer step, and its end."""
    card_ledger, a = e.card_ledger, e.card_ledger.allocations
    others = _not_cleared(e)
    rows = np.flatnonzero((card_ledger.category == Category.GRADIENTS) & ~others)
    step = np.searchsorted(ends, a.allocated_at[rows])
    rows, step = rows[step < len(ends)], step[step < len(ends)]
    late = a.freed[rows] > ends[step]
    return rows[late], ends[step[late]]


def _peak_reduction(e: Evidence, rows: Ints, gone: Ints) -> int:
    """Return by how much the peak falls if blocks are freed at positions."""
    without = e.card_ledger.allocated_without(rows, gone)
    return int(e.card_ledger.allocated.max() - without.max())


def _made_anew(e: Evidence) -> int:
    """Return bytes of gradients that the first backward made by its peak.

    This is the memory of a backward that starts without gradients.
    """
    first = next((i for i, n in enumerate(e.card_ledger.phases.names) if n == "backward"), None)
    if first is None:
        return 0
    top = e.card_ledger.peak(*e.card_ledger.bounds(e.card_ledger.phases.spans[first][1]))
    a = e.card_ledger.allocations
    mine = (
        (e.card_ledger.category == Category.GRADIENTS)
        & (e.card_ledger.born_in == first)
        & (a.allocated_at < top)
    )
    return int(a.block[mine & (a.freed >= top)].sum())


RULE = Rule(name="gradients_kept", text=__doc__, check=check)
