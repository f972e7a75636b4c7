"""A variable keeps tensors behind its last use.

What it sees
    Tensors at the peak that only variables hold which no later line reads: data that was converted
    or normalized into a copy, features that were matched, a list that was joined. The text of the
    script tells what is read. A variable that a nested function or a loop around the line reads
    counts as used, and so does any variable of a notebook: the next cell may read it. It speaks if
    the peak is a quarter lower without them, or a tenth where that is 1% of the card.
What it costs
    Their bytes, beside what is computed from them: a name keeps its tensors to the end of its
    function, or of the script.
Do instead
    `del data` behind its last use, or give the result the same name: `data = data.float()`.
When to ignore it
    Another file or a debugger reads the variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.tips.detectors.unread_variables import joined, unread_variables
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence

LEAST_OF_ALL = 0.1
"""Part of what all variables keep from which one is named."""
_OF_MODELS = (Category.WEIGHTS, Category.BUFFERS)


def check(e: Evidence) -> Findings:
    """Find the data that variables keep in vain at the peak."""
    a, category = e.card_ledger.allocations, e.card_ledger.category
    found = [
        one for one in e.once(unread_variables) if not np.isin(category[one.rows], _OF_MODELS).any()
    ]
    sizes = [int(a.block[one.rows].sum()) for one in found]
    found = [
        one for one, size in zip(found, sizes, strict=True) if size >= LEAST_OF_ALL * sum(sizes)
    ]
    if not found:
        return
    found.sort(key=lambda one: -int(a.block[one.rows].sum()))
    unread = joined(found)
    gain, when = e.peak_saving(unread.rows, unread.since), "at the peak"
    if not e.is_needless(gain):
        gain, when = _later(e, unread.rows, unread.since), "from then on"
    if not e.is_needless(gain):
        return
    where = f" in {unread.function}" if unread.function else ""
    hold = "they hold" if len(unread.names) > 1 else "it holds"
    yield RULE.finding(
        title=f"`{unread.code}` behind the last use{where}, before {unread.line}: {fmt(gain)} less "
        f"{when}",
        evidence=f"{unread.evidence}, and {hold} {fmt(int(a.block[unread.rows].sum()))}.",
        saves=exact(gain),
        code=f"{unread.code}   # behind the last use",
    )


def _later(e: Evidence, rows: Ints, since: Ints) -> int:
    """Return by how much the highest moment behind the last use falls."""
    begin, a = int(since.max()) + 1, e.card_ledger.allocations
    if begin > int(a.allocated_at.max()):
        return 0  # nothing is made any more
    curve = e.card_ledger.allocated[begin:]
    return int(curve.max() - e.allocated_without(rows, since)[begin:].max())


RULE = Rule(name="kept_after_use", text=__doc__, check=check)
