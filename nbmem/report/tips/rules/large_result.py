"""One result is larger than the card, or most of the peak.

What it sees
    - The request that ended the program: a tensor with more bytes than the card could give, or,
      where no remedy was found, with half of them. The line, the module and torch's function are
      known.
    - Where memory is short: one tensor that is half of the peak.
    - A half-precision result of a module that is copied to float32 at once, without gradients, if
      the two are half of the peak (the logits of a large vocabulary).
What it costs
    The size of such a tensor is a product: rows by rows (`torch.cdist`, attention scores), or
    positions by classes (logits, one-hot targets). No allocator setting makes room for it.
Do instead
    Compute it in parts, and use each part before the next one is made: a loop over `x.split(n)`. Of
    a language model's logits compute the positions that you read: `lm_head(hidden[:, -1:])`. Give
    `cross_entropy` class numbers instead of one-hot targets.
When to ignore it
    You need the whole tensor at once. Then it needs a larger card, or the CPU.
"""

from __future__ import annotations

import re
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.source_files import with_slashes
from nbmem.core.session.tensor_names import VIEW
from nbmem.report.analysis.oom.failed_request import request_that_ended
from nbmem.report.tips.rule import Findings, Rule, estimated, exact, fmt, fmt_range

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.events import Stack
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.5
"""Part of the card or of the peak from which one result is told."""
PARTS = 4
"""A part of a result has at most this fraction of the room: its gradient and what is computed of it
are as large again."""
AT_ONCE = 4
"""Most events between a copy and the release of its original."""
_FUNCTIONS = {"torch/functional.py": "torch.", "torch/nn/functional.py": "F."}
_MODULE = re.compile(r"(?:near|after|of|by) (\S+)")


def check(e: Evidence) -> Findings:
    """Find a refused request, a tensor or a copy that is too large."""
    refused = list(_refused(e))
    yield from refused or _copied(e) or _short(e)


def _refused(e: Evidence) -> Findings:
    case = request_that_ended(e.card_ledger)
    if case is None or not e.report.ooms:
        return
    chief = e.report.ooms[0]
    if any(one.rule == "eager_attention" for one in chief.remedies):
        return  # a fused kernel makes no such tensor
    if case.limited or case.size < case.capacity * (SHARE if not chief.remedies else 1):
        return
    room = case.capacity - (chief.allocated or 0)
    parts = ceil(PARTS * case.size / max(room, 1))
    stack = () if case.refusal is None else case.refusal.stack
    layer = f"`{chief.layer.partition(' ')[0]}`" if chief.layer else None
    what = " in ".join(filter(None, (_function(stack), layer))) or chief.operator or "A request"
    where = f" at {chief.at.line}" if chief.at.line else ""
    much = f"{case.size / case.capacity:.1f} times what the card could give"
    if case.size < case.capacity:
        much = f"{100 * case.size / case.capacity:.0f}% of the card"
    yield RULE.finding(
        title=f"{what}{where} makes one tensor of {fmt(case.size)}, {much}: "
        f"compute it in {parts} parts or more",
        evidence=f"It was requested when {fmt(case.free)} were free. In {parts} parts of "
        f"{fmt(ceil(case.size / parts))}, a part, its gradient and two copies fit into what live "
        "tensors leave of the card. Loop over `x.chunk(n)`, and use each part before the next one "
        "is made.",
        saves=estimated(case.size - ceil(case.size / parts), case.size),
    )


def _function(stack: Stack) -> str | None:
    """Return torch's own function of the innermost frame: `torch.cdist`."""
    if not stack:
        return None
    file = with_slashes(stack[0].file)
    prefixes = [prefix for end, prefix in _FUNCTIONS.items() if file.endswith(f"/{end}")]
    return f"`{prefixes[-1]}{stack[0].function}`" if prefixes else None


def _copied(e: Evidence) -> list[Finding]:
    """Find results that are copied to float32 where nothing needs a graph."""
    results, copies = _copies(e)
    both = np.concatenate((results, copies))
    size = int(e.card_ledger.allocations.block[both[e.live_at_peak(both)]].sum())
    low, high = (e.peak_saving(rows) for rows in (copies, both))
    if not len(both) or not e.dominates(min(size, high), SHARE):
        return []
    name = e.card_ledger.name(int(results[-1])) or ""
    requested = e.card_ledger.allocations.requested
    module = _MODULE.search(name)
    what = module[1] if module is not None else name.removesuffix(VIEW)
    return [
        RULE.finding(
            title=f"The result of {what or 'a module'} and its float32 copy hold {fmt(size)} at "
            "the peak: compute only the positions that you read, or compute it in parts",
            evidence=f"A tensor of {fmt(int(requested[results[-1]]))} was copied to "
            f"{fmt(int(requested[copies[-1]]))}, {len(copies)} times. Without the copies the "
            f"peak falls by {fmt_range(low, low)}, without the whole result by {fmt(high)}.",
            saves=exact(low, high),
        )
    ]


def _copies(e: Evidence) -> tuple[Ints, Ints]:
    """Return results in half precision and their float32 copies.

    A copy is the first large allocation after its original, which is released at once.
    """
    a, card_ledger = e.card_ledger.allocations, e.card_ledger
    large = np.flatnonzero((a.block >= SHARE / 3 * e.report.peak.allocated) & (a.allocated_at >= 0))
    large = large[card_ledger.phases.named(card_ledger.born_in[large], "inference")]
    one, two = large[:-1], large[1:]
    after = a.freed[one] - a.allocated_at[two]
    such = (a.requested[two] == 2 * a.requested[one]) & (after >= 0) & (after <= AT_ONCE)
    return one[such], two[such]


def _short(e: Evidence) -> Findings:
    """Find the tensor that is half of the peak where memory is short."""
    top = max(e.report.holdings, key=lambda h: h.block, default=None)
    if e.ran_out or e.short is None or top is None or not e.dominates(top.block, SHARE):
        return
    where = f" (made at {top.line})" if top.line else ""
    yield RULE.finding(
        title=f"One tensor is {100 * top.block / e.report.peak.allocated:.0f}% of the peak: "
        f"{top.name or 'without a name'}, {fmt(top.block)}",
        evidence=f"{e.short}. Made in parts{where}, each used before the next, it takes a part of "
        "these bytes.",
        saves=estimated(0, top.block),
    )


RULE = Rule(name="large_result", text=__doc__, check=check)
