"""A tensor is computed whole, and a small part of it is used.

What it sees
    A line whose tensors are read once a part of them is chosen, as by `x[:, chosen]`, and are freed
    without another use: rays of all pixels, scores of all pairs, logits of all positions. Operators
    have used less than a quarter of them. Only a virtual card knows what operators use. It
    speaks if the peak is a quarter lower without the rest, or a tenth and that is 1% of the card.
What it costs
    The whole tensor, and what the same function computes on the way to it.
Do instead
    Choose first and compute behind that: index the function's inputs, not its result.
When to ignore it
    The part can be chosen only by the whole, as the largest scores. Lines with a softmax, a norm or
    a sum are left alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.allocation_lines import allocation_lines
from nbmem.report.analysis.unused_memory import partly_used
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.events import Frame
    from nbmem.report.tips.evidence import Evidence

OFTEN = 0.25
"""Part of a line's tensors of one size that are used in part: the others make the result."""
_COMPUTED = (
    Category.TEMPORARIES,
    Category.ACTIVATIONS,
    Category.USER_TENSORS,
    Category.INPUTS,
    Category.UNKNOWN,
)
_DATA = re.compile(
    r"\b(?:torch|np)\.(?:rand|randn|randint|randperm|zeros|ones|empty|full|arange|load|tensor)\("
    r"|\.(?:cuda|to|new_zeros|new_empty|new_full|new_ones)\("
)
"""Calls that make or move data, of which a program uses what it needs."""
_OF_ALL = re.compile(r"softmax|norm|logsumexp|sort|topk|cumsum|cumprod|fft|unique|median")
"""Functions whose every element depends on others: no part can be chosen first."""


def check(e: Evidence) -> Findings:
    """Find the line without most of whose tensors the peak is lowest."""
    used = partly_used(e.card_ledger)
    found = [(e.peak_saving(_on_the_way(e, rows)), rows) for rows in _by_line(e, used.rows)]
    gain, rows = max(found, key=lambda one: one[0], default=(0, np.empty(0, np.int64)))
    if not gain:
        return
    part = int(used.used[np.isin(used.rows, rows)].max())
    size = int(e.card_ledger.allocations.requested[rows[0]])
    less = gain - gain * part // size
    if not e.is_needless(less):
        return
    line = allocation_lines(e.card_ledger)[int(rows[0])].lines[0]
    yield RULE.finding(
        title=f"{line.quoted}{line.inside} computes {fmt(size)} of which {fmt(part)} are used: "
        f"choose that part first, and compute it alone: {fmt(less)} less at the peak",
        evidence=f"Operators had read {fmt(part)} of it when it was freed. What else the function "
        "makes of that size, and its gradients, are smaller then, too.",
        saves=simulated(less, gain),
    )


def _by_line(e: Evidence, rows: Ints) -> list[Ints]:
    """Group tensors that are used in part by their line and their size.

    Lines are left out whose tensors are mostly used whole.
    """
    ledger, a, lines = e.card_ledger, e.card_ledger.allocations, allocation_lines(e.card_ledger)
    rows = rows[np.isin(ledger.category[rows], _COMPUTED)]
    if not len(rows):
        return []
    kinds: dict[tuple[Frame, int], int] = defaultdict(int)
    for row, each in lines.items():
        kinds[each.lines[0].frame, int(a.requested[row])] += 1
    found: dict[tuple[Frame, int], list[int]] = defaultdict(list)
    for row in rows.tolist():
        line = lines.get(row)
        if line is None or line.by_module:
            continue
        if not (_DATA.search(line.lines[0].text) or _OF_ALL.search(line.lines[0].text)):
            found[line.lines[0].frame, int(a.requested[row])].append(row)
    return [np.array(same) for kind, same in found.items() if len(same) >= OFTEN * kinds[kind]]


def _on_the_way(e: Evidence, rows: Ints) -> Ints:
    """Return what was made on the way to a result, with its gradients.

    What is computed of a part is smaller with that part: tensors of the result's size or larger
    that the same call of its function has made, and what backwards make of such sizes.

    Args:
        e: The recording.
        rows: The results, which one line makes.
    """
    ledger, a, lines = e.card_ledger, e.card_ledger.allocations, allocation_lines(e.card_ledger)
    first = lines[int(rows[0])]
    call = (*first.lines, *first.callers)[1:2] or first.lines
    place = call[0].frame
    made = np.array(
        [
            row
            for row, line in lines.items()
            if any(user.frame == place for user in (*line.lines, *line.callers))
            and a.requested[row] >= a.requested[rows[0]]
        ]
    )
    back = ledger.phases.named(ledger.born_in, "backward") & np.isin(a.requested, a.requested[made])
    found: Ints = np.union1d(made, np.flatnonzero(back))
    return found


RULE = Rule(name="partly_used", text=__doc__, check=check)
