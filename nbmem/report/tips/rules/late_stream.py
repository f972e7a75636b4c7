"""Freed memory waits for another stream.

What it sees
    Blocks that were freed, and that the allocator could not give out again, because
    `record_stream()` had told it of another stream which was not done with them; and that the same
    requests reserve less where such blocks are free at once.
What it costs
    New requests take new memory from the driver meanwhile, so reserved memory grows, and with it
    what nvidia-smi shows. The further the CPU runs ahead of the GPU, the more.
Do instead
    With FSDP1 leave `limit_all_gathers=True`, which is its default. In code of your own keep the
    tensor until `torch.cuda.current_stream().wait_stream(side)`, and drop it then, in the place of
    `record_stream`. Up to torch 2.6 `TORCH_NCCL_AVOID_RECORD_STREAMS=1` does that for collectives.
When to ignore it
    The card has room. On a virtual card nobody knows when a stream is done, so the rule is silent.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import without_numbers, without_shape
from nbmem.report.analysis.program_names import code_name
from nbmem.report.analysis.what_if import is_as_recorded, try_settings
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find freed memory that waits for a stream, and what it costs.

    The cost is what is reserved beyond a replay in which no block waits.
    """
    at = int(np.argmax(e.card_ledger.active))
    waits = e.card_ledger.ledger(at)[Category.PENDING]
    if e.trace.info.virtual or not e.worth(waits):
        return
    now, freed = try_settings(e.card_ledger), try_settings(e.card_ledger, at_once=True)
    saved = now.peak_reserved - freed.peak_reserved
    refused = e.ran_out or bool(e.retries)
    if not e.matters(saved) or not (refused or is_as_recorded(e.card_ledger, now)):
        return
    unlimited = next((m for m in e.modules if m.get("limit_all_gathers") is False), None)
    yield RULE.finding(
        title=f"Freed memory waits for another stream: up to {fmt(saved)} less reserved",
        evidence=f"At the highest moment {fmt(waits)} were freed, but another stream still used "
        f"them: {_largest_pending(e, at)}. Without that wait the same requests would have "
        f"reserved {fmt(freed.peak_reserved)} at most, not {fmt(now.peak_reserved)}.",
        saves=simulated(0, saved),
        code=None if unlimited is None else _code(code_name(unlimited)),
    )


def _largest_pending(e: Evidence, at: int) -> str:
    """Name the largest part of the memory that waits."""
    a = e.card_ledger.allocations
    rows = np.flatnonzero((a.freed < at) & (a.allocated_at < a.freed) & (a.completed_at >= at))
    sums: Counter[str] = Counter()
    for row in rows.tolist():
        name = e.card_ledger.name(row)
        label = Category(int(e.card_ledger.category[row])).label
        sums[label if name is None else without_numbers(without_shape(name))] += int(a.block[row])
    ((name, size),) = sums.most_common(1)
    return f"{fmt(size)} of them {name}"


def _code(name: str | None) -> str | None:
    """Return code that limits FSDP1's all-gathers, or None.

    None if the notebook has no name for the module.
    """
    if name is None:
        return None
    return (
        "from torch.distributed.fsdp import FullyShardedDataParallel\n\n"
        f"for unit in FullyShardedDataParallel.fsdp_modules({name}):\n"
        "    unit.limit_all_gathers = True"
    )


RULE = Rule(name="late_stream", text=__doc__, check=check)
