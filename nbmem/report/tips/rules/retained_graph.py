"""A graph stays on the card after its last backward.

What it sees
    All that a forward had saved, still there behind the last backward through it, and freed in no
    later one: `retain_graph=True` or `create_graph=True` in a call that no second one follows. It
    is shown if the peak is a quarter lower without it, or a tenth where that is 1% of the card.
What it costs
    The activations of that forward, beside those of the next one.
Do instead
    Leave the argument out, or give it only to the backwards before the last one of a graph.
When to ignore it
    You go through the graph again later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt_range

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.module_passes import Passes
    from nbmem.report.tips.evidence import Evidence

WHOLE = 0.9
"""Part of what a forward saved that its backward has left: less is what a variable holds."""
FEWEST = 3
"""Tensors that a forward saved at least."""


def check(e: Evidence) -> Findings:
    """Find graphs that outlive the last backward through them."""
    if not e.phases("backward"):
        return
    passes, names = e.passes, e.card_ledger.phases.names.tolist()
    size = e.card_ledger.allocations.block
    rows, ends = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for forward in (index for index, name in enumerate(names) if name == "forward"):
        saved = passes.made_by_modules(forward, Category.ACTIVATIONS)
        end = _last_use(e, passes, forward, saved)
        left = _left(e, saved, end)
        if len(left) >= FEWEST and size[left].sum() >= WHOLE * size[saved].sum():
            rows, ends = np.append(rows, left), np.append(ends, np.full(len(left), end))
    if not len(rows):
        return
    low, high = e.peak_saving(rows, ends), _at_most(e, rows, ends)
    if e.is_needless(low):
        yield RULE.finding(
            title=f"`backward()` without `retain_graph=True`: {fmt_range(low, high)} less at "
            "the peak",
            evidence="At the peak a graph is there that a backward has gone through. No later one "
            "does: it is freed when its loss is assigned anew.",
            saves=estimated(low, high),
        )


def _at_most(e: Evidence, rows: Ints, ends: Ints) -> int:
    """Return by how much the peak falls at most.

    A backward then frees at once what it has used, with the inputs that only the graph has. They
    are freed along with it.
    """
    a, phases = e.card_ledger.allocations, e.card_ledger.phases
    given = (e.card_ledger.category == Category.INPUTS) & e.freed_with(rows)
    rows = np.union1d(rows, np.flatnonzero(given))
    begins = np.array([phases.bounds(phase)[0] for phase in phases.of(ends - 1).tolist()], np.int64)
    since = begins[np.minimum(np.searchsorted(begins, a.allocated_at[rows]), len(begins) - 1)]
    return e.peak_saving(rows, since)


def _last_use(e: Evidence, passes: Passes, forward: int, saved: Ints) -> int:
    """Return where the last backward through a graph ends, or the end.

    Another forward of the same modules begins a graph of its own.
    """
    phases, mine = e.card_ledger.phases, passes.of[saved]
    end = e.card_ledger.events
    for later in range(forward + 1, len(phases.names)):
        if phases.names[later] == "forward":
            anew = passes.made_by_modules(later, Category.ACTIVATIONS)
            if np.isin(passes.of[anew], mine).any():
                break
        elif phases.names[later] == "backward":
            made = passes.made_by_modules(later, Category.GRADIENTS, Category.OUTPUT_GRADIENTS)
            if np.isin(passes.of[made], mine).any():
                end = phases.bounds(later)[1]
    return end


def _left(e: Evidence, rows: Ints, end: int) -> Ints:
    """Return the rows that live on at a position and are freed in no backward."""
    a, phases = e.card_ledger.allocations, e.card_ledger.phases
    late = (a.freed[rows] > end) & ~e.in_gradient_cycle[rows]
    found: Ints = rows[late & ~phases.named(phases.of(a.freed[rows]), "backward")]
    return found


RULE = Rule(name="retained_graph", text=__doc__, check=check)
