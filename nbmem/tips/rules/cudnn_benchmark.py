"""cuDNN's benchmark raised the peak.

What it sees
    `torch.backends.cudnn.benchmark`, and requests that are freed at once with the cache emptied
    behind them: for each new shape of a convolution cuDNN tries all its kernels, in a work area as
    large as the largest of them wants.
What it costs
    The work area, in the first step and for each new shape again; often many times the tensors.
Do instead
    `torch.backends.cudnn.benchmark = False`: cuDNN takes the kernel that it holds to be the best.
When to ignore it
    The search fits and the step is faster for it: the work area is gone when the step goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.events import GIVES_BACK, Action
from nbmem.report import Finding
from nbmem.tips.rule import Rule, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from nbmem.ledger.books import Books
    from nbmem.tips.evidence import Evidence


def check(e: Evidence) -> Iterator[Finding]:
    """The peak as it was, and as it would be without the searches."""
    if not e.fact("cudnn_benchmark"):
        return
    a, books = e.books.allocations, e.books
    rows = searches(books)
    curve = books.allocated.copy()
    for row in rows:
        curve[a.born[row] + 1 : a.freed[row] + 1] -= a.block[row]
    saves = int(books.allocated.max() - curve.max())
    if not len(rows) or not e.matters(saves):
        return
    yield Finding(
        rule=RULE.name,
        title=f"`torch.backends.cudnn.benchmark` raises the peak by {say(saves)}",
        evidence=f"cuDNN tried its kernels {len(rows)} times, with up to "
        f"{say(int(a.requested[rows].max()))} for a work area, which was freed at once. Without "
        f"that the peak would be {say(int(curve.max()))}.",
        low=saves,
        high=saves,
        ground="estimated",
        code="torch.backends.cudnn.benchmark = False",
    )


def searches(books: Books) -> NDArray[np.int64]:
    """Rows of the allocations in which cuDNN tried its kernels.

    torch frees such a one at once and then empties the cache (run_single_conv of Conv_v8.cpp).
    """
    a, action = books.allocations, books.trace.events.action
    brief = np.flatnonzero((a.born >= 0) & (a.freed < books.events) & (a.freed - a.born == 1))
    behind = [_next_but_frees(action, int(a.freed[row])) for row in brief]
    return brief[np.isin(behind, GIVES_BACK)] if len(brief) else brief


def _next_but_frees(action: NDArray[np.uint8], at: int) -> int:
    """What the allocator did behind a request to free that was carried out at once; -1: nothing."""
    at += 1
    while at < len(action) and action[at] == Action.FREE_COMPLETED:
        at += 1
    return int(action[at]) if at < len(action) else -1


RULE = Rule(name="cudnn_benchmark", text=__doc__, check=check)
