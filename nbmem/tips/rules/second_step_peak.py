"""The highest moment comes in the second iteration, not in the first.

What it sees
    A recording of one iteration whose optimizer made its state in it.
What it costs
    The forward and backward of every later iteration run beside that state: what one iteration
    shows is too little by the bytes of the state.
Do instead
    Trace two iterations before you choose a batch or a card.
When to ignore it
    You train one step only, or you know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.analysis.whatif import MOST_EVENTS, try_again
from nbmem.core.categories import Category
from nbmem.report import Finding
from nbmem.tips.rule import Rule, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.tips.evidence import Evidence

SHARE = 0.05
"""Part of the recorded peak by which the second must be higher."""


def check(e: Evidence) -> Iterator[Finding]:
    """One iteration, with a state that was not there at its forward and backward."""
    names = e.books.phases.names.tolist()
    passes = [i for i, n in enumerate(names) if n in ("forward", "backward")]
    steps = [i for i, n in enumerate(names) if n == "optimizer"]
    if (
        e.ran_out
        or e.books.events > MOST_EVENTS
        or not passes
        or len(e.step_ends) != 1
        or not steps
    ):
        return
    a, books = e.books.followed.allocations, e.books
    device = e.session.devices.index(e.trace)
    spans = [span for _, span in books.phases.spans]
    made = (books.category == Category.OPTIMIZER_STATE) & np.isin(books.born_in, steps)
    state = int(a.block[made & (a.freed >= books.events)].sum())
    begins = next(i for i, n in enumerate(names) if n in ("input", "forward"))
    first, last = spans[begins].first[device], spans[passes[-1]].last[device]
    before = int(books.followed.allocated[first : last + 1].max())
    peak = e.report.peak.allocated
    if not e.dominates(before + state - peak, SHARE):
        return
    second = try_again(books, first, last).peak_allocated
    more = second - peak
    if more <= 0:
        return
    yield Finding(
        rule=RULE.name,
        title=f"The second iteration will peak at {say(second)}, {say(more)} above the first",
        evidence=f"Forward and backward peaked at {say(before)} before the optimizer made "
        f"{say(state)} of state; from now on it is there from the start.",
        low=more,
        high=more,
        ground="simulated",
    )


RULE = Rule(name="second_step_peak", text=__doc__, check=check)
