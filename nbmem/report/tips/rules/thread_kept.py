"""Another thread keeps tensors that nothing uses any more.

What it sees
    Tensors at the end that only variables of running threads reach, as by the `self` of a worker
    that waits for ever, most of which no operator used in the last tenth of the recording. A thread
    that has a model's weights, too, may go on and is left alone. Only a virtual card knows what
    operators use. It speaks if that is a quarter of the peak, or a tenth and 1% of the card.
What it costs
    Their bytes, as long as the thread runs. Deleting the objects that started it frees nothing.
Do instead
    Let the thread end (a flag that it reads, then `join()`), or give it a `weakref.ref(self)`.
When to ignore it
    The thread goes on with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HolderKind
from nbmem.core.session.variable_paths import parse_path
from nbmem.report.analysis.growth_candidates import common_place
from nbmem.report.analysis.unused_memory import unused_memory
from nbmem.report.tips.detectors.unused_for_good import LATE
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.core.session.holders import HeldStorage
    from nbmem.report.tips.evidence import Evidence

MOST = 0.5
"""Part of what a function in threads keeps that has not been used since."""
IN_THREAD = " in thread "
_OF_MODELS = (Category.WEIGHTS, Category.BUFFERS, Category.OPTIMIZER_STATE)


def check(e: Evidence) -> Findings:
    """Find the functions of other threads that keep tensors in vain."""
    unused, a = unused_memory(e.card_ledger), e.card_ledger.allocations
    since = dict(zip(unused.rows.tolist(), unused.since.tolist(), strict=True))
    groups: dict[str, list[HeldStorage]] = {}
    for held in e.held_only_by(HolderKind.THREAD) if since else ():
        function, _, _ = held.holders[0].root.partition(IN_THREAD)
        groups.setdefault(function, []).append(held)
    for function, mine in groups.items():
        rows = {row: held.size for held in mine if (row := e.row_of(held)) is not None}
        idle = sum(
            size
            for row, size in rows.items()
            if a.allocated_at[row] < since.get(row, 0) < LATE * e.card_ledger.events
        )
        freed = e.freed_bytes(mine)
        of_model = any(e.card_ledger.category[row] in _OF_MODELS for row in rows)
        if of_model or idle < MOST * sum(rows.values()) or not e.is_needless(freed):
            continue
        threads = sorted({held.holders[0].root.partition(IN_THREAD)[2] for held in mine})
        place = common_place(
            parse_path(held.holders[0].path.partition(IN_THREAD)[0]).path for held in mine
        )
        where = f"thread {threads[0]}" if len(threads) == 1 else f"{len(threads)} threads"
        yield RULE.finding(
            title=f"{f'`{place}` of ' if place else ''}{function} in {where} keeps {fmt(freed)} "
            "that no operator uses any more: let the thread end, or release it",
            evidence=f"Only variables of running threads ({', '.join(threads)}) reach these "
            f"{len(mine)} tensors.",
            saves=exact(freed),
        )


RULE = Rule(name="thread_kept", text=__doc__, check=check)
