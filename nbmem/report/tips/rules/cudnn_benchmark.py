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

from nbmem.report.ledger.cudnn_benchmark import find_cudnn_searches
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Compute the peak without the searches of cuDNN's benchmark."""
    a, card_ledger = e.card_ledger.allocations, e.card_ledger
    rows = find_cudnn_searches(a, e.session, card_ledger.device)
    if not rows:
        return
    curve = card_ledger.allocated.copy()
    for row in rows:
        curve[a.allocated_at[row] + 1 : a.freed[row] + 1] -= a.block[row]
    saves = int(card_ledger.allocated.max() - curve.max())
    if not e.matters(saves):
        return
    yield RULE.finding(
        title=f"`torch.backends.cudnn.benchmark` raises the peak by {fmt(saves)}",
        evidence=f"cuDNN tried its kernels {len(rows)} times, with up to "
        f"{fmt(int(a.requested[rows].max()))} for a work area, which was freed at once. Without "
        f"that the peak would be {fmt(int(curve.max()))}.",
        saves=estimated(saves),
        code="torch.backends.cudnn.benchmark = False",
    )


RULE = Rule(name="cudnn_benchmark", text=__doc__, check=check)
