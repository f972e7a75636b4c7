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

from nbmem.core.session.categories import Category
from nbmem.report.analysis.what_if import MOST_EVENTS, try_again
from nbmem.report.model import Finding
from nbmem.report.tips.rule import Rule, say, saying

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.report.tips.evidence import Evidence

SHARE = 0.05
"""Part of the recorded peak by which the second must be higher."""
KEPT = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.OPTIMIZER_STATE,
    Category.WORKSPACE,
    Category.COMMUNICATION,
)
"""What an iteration makes once; everything else that it leaves is made anew by the next one."""


def check(e: Evidence) -> Iterator[Finding]:
    """Replay an iteration with optimizer state that it did not have."""
    books = e.books
    names = books.phases.names.tolist()
    if e.ran_out or len(e.step_ends) != 1 or "backward" not in names or "optimizer" not in names:
        return
    opens = next((i for i, n in enumerate(names) if n in ("input", "forward")), None)
    if opens is None or books.events > MOST_EVENTS:
        return
    begins, _ = books.bounds(books.phases.spans[opens][1])
    # An evaluation behind the loop belongs to its last step, and to no further iteration.
    closing = [s for s in e.session.spans if s.name in ("optimizer", "zero_grad")]
    ends = max(books.bounds(span)[1] for span in closing)
    a = books.allocations
    state = books.category == Category.OPTIMIZER_STATE
    state &= np.isin(books.born_in, np.flatnonzero(books.phases.names == "optimizer"))
    state &= a.freed >= ends
    before, size = int(a.born[state].min(initial=ends)), int(a.block[state].sum())
    peak = e.report.peak.allocated
    low, high = sorted(_again(e, begins, ends, late=late) for late in (False, True))
    if not size or not e.dominates(low - peak, SHARE):
        return
    first = int(books.allocated[begins : before + 1].max())
    yield Finding(
        rule=RULE.name,
        title=f"The second iteration will peak at {saying(low, high)}, "
        f"{saying(low - peak, high - peak)} above the first",
        evidence=f"Forward and backward peaked at {say(first)} before the optimizer made "
        f"{say(size)} of state; from now on it is there from the start.",
        low=low - peak,
        high=high - peak,
        ground="simulated",
    )


def _again(e: Evidence, begins: int, ends: int, *, late: bool) -> int:
    """Return the allocated peak if the iteration runs once more.

    What it made once stays; a gradient goes where the loop's head sets it to None; a batch, an
    output and a loss go when their names get the new one.

    Args:
        e: The recording.
        begins: Position at which the first iteration began.
        ends: Position at which it ended.
        late: An output's name gets the new one when the loss is known, since the model itself
            computes it; else at once.
    """
    books, a = e.books, e.books.allocations
    left = (a.born >= begins) & (a.born < ends) & (a.freed >= ends)
    gradients = left & (books.category == Category.GRADIENTS)
    once = left & np.isin(books.category, KEPT)
    zeroed = _zeroed_at(e)
    if zeroed is None:
        once |= gradients  # a later backward adds to them where they are
    rows = np.flatnonzero(left & ~once)
    goes = a.born[rows] + 1
    if late:
        lasts = np.array([books.bounds(s)[1] for _, s in books.phases.spans], np.int64)
        forward = books.phases.named(books.born_in[rows], "forward")
        goes = np.where(forward, lasts[books.born_in[rows]], goes)
    goes = goes if zeroed is None else np.where(gradients[rows], zeroed, goes)
    born = a.born[rows].tolist()
    instead = dict(zip(born, goes.tolist(), strict=True))
    return try_again(
        books, begins, ends, once=set(a.born[once].tolist()), instead=instead
    ).peak_allocated


def _zeroed_at(e: Evidence) -> int | None:
    """Return where the loop sets old gradients to None, or None.

    That is ahead of its own backward.
    """
    for span in e.session.spans:
        if span.kind == "phase" and span.name == "backward":
            return None
        if span.kind == "phase" and span.name == "zero_grad":
            return e.books.bounds(span)[0]
    return None


RULE = Rule(name="second_step_peak", text=__doc__, check=check)
