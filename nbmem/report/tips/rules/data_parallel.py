"""DataParallel gathers the outputs and the loss on the first card.

What it sees
    A `DataParallel` that was called, and a first card whose peak is far above those of the others.
    Where the outputs are large, as logits are, that is because they are gathered there, with the
    loss and their gradients.
What it costs
    The batch must fit the first card, while the others have room.
Do instead
    `DistributedDataParallel` with one process for each card. Or compute the loss in the module's
    `forward` and return it, so that only numbers are gathered.
When to ignore it
    The first card has room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.report.ledger.card_ledger import CardLedger
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.2
"""Part of the first card's peak that the difference must have."""


def check(e: Evidence) -> Findings:
    """Compare the peaks of the cards that one process uses."""
    wrappers = [m for m in e.modules if m["class"] == "DataParallel" and m.get("called")]
    others = [i for i in range(len(e.session.devices)) if i != e.card_ledger.device]
    if not wrappers or not others:
        return
    peaks = {i: int(CardLedger(e.session, i).allocated.max()) for i in others}
    other = max(peaks, key=lambda index: peaks[index])
    more = e.report.peak.allocated - peaks[other]
    cards = len(e.session.devices)
    low = more - more // cards
    if not e.is_large_part(low) or not e.dominates(more, SHARE):
        return
    mine, info = e.trace.info.index, e.session.devices[other].info
    yield RULE.finding(
        title=f"DataParallel gathers outputs on card {mine}: {fmt(more)} more than card "
        f"{info.index}",
        evidence=f"The peak is {fmt(e.report.peak.allocated)} on card {mine} and "
        f"{fmt(peaks[other])} on card {info.index}. With the loss computed in `forward`, or with "
        f"DistributedDataParallel, it is {fmt_range(low, more)} less.",
        saves=estimated(low, more),
        code="from torch.nn.parallel import DistributedDataParallel   # torchrun: a process a card",
    )


RULE = Rule(name="data_parallel", text=__doc__, check=check)
