"""Memory lives on behind the last operator that uses it.

What it sees
    Tensors that variables, lists or attributes keep although no operator reads or writes them any
    more: a batch during its backward, the list that was joined, a copy of a model, a model while
    the next one is loaded. And what a graph saved for no backward, also the one that
    `create_graph=True` makes. Only a virtual card knows what operators use. It speaks if the peak
    is a tenth lower without them and that is 1% of the card, and if no other tip saves nearly as
    much; of a module's result and a function's temporaries if it is a quarter lower. What lives at
    the end of a notebook's cell is left alone: the next cell may use it.
What it costs
    Their bytes, beside what the program computes meanwhile.
Do instead
    `del batch` behind the last use, in the function that has the variable and in those that called
    it; clear the list; set the attribute to None. Compute under `torch.no_grad()` what no backward
    goes through, or keep `x.detach()`.
When to ignore it
    The program goes on behind what was recorded, and uses them there.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.analysis.allocation_lines import UserLine, allocation_lines, shorten
from nbmem.report.analysis.growth_candidates import common_place, variable_of
from nbmem.report.tips.detectors.unused_holders import UnusedHolder, unused_by_holder
from nbmem.report.tips.evidence import LARGE_PART, NEEDLESS, NEEDLESS_OF_CARD
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

MOST = 0.8
"""Part of the memory that one function has made which a title names."""
SPREAD = 8
"""A backward without a graph of its own frees what it makes when each node has ended, and makes
other temporaries. Its saving is promised up to an eighth to both sides."""
LISTED = 2
"""Variables that a title names; of more it names what has them all."""
PART = 0.1
"""Part of the memory from which a title names a variable."""


def check(e: Evidence) -> Findings:
    """Find the holder of unused memory without which the peak is lowest."""
    block = e.card_ledger.allocations.block
    best: tuple[int, UnusedHolder, Ints, Ints] | None = None
    for holder, (rows, since) in unused_by_holder(e).items():
        if e.worth(int(block[rows].sum())):
            gain = e.peak_saving(rows, since)
            if holder.usual and not e.dominates(gain, LARGE_PART):
                continue  # `out = model(x)`: as everybody writes it
            if best is None or gain > best[0]:
                best = gain, holder, rows, since
    # Every loop keeps a small batch too long.
    if best is not None and e.dominates(best[0], NEEDLESS) and e.matters(best[0], NEEDLESS_OF_CARD):
        yield _finding(e, *best)


def _finding(e: Evidence, gain: int, holder: UnusedHolder, rows: Ints, since: Ints) -> Finding:
    a, at_peak = e.card_ledger.allocations, e.live_at_peak(rows)
    size = int(a.block[rows[at_peak]].sum())
    behind = _line_behind(e, int(since[at_peak].min(initial=e.card_ledger.events)))
    unused = f"no operator uses from {behind.place} on" if behind else "no operator uses any more"
    if holder.kind == "graph":
        return RULE.finding(
            title=f"No backward reads what {_common_function(e, rows[at_peak])} saves: "
            f"{fmt(gain)} less at the peak under torch.no_grad()",
            evidence=f"Graphs keep {fmt(size)} of it at the peak that {unused}.",
            saves=simulated(gain),
        )
    if holder.kind == "second graph":
        return RULE.finding(
            title="No backward reads the graph that `create_graph=True` makes of a backward: "
            f"about {fmt(gain)} less at the peak without it",
            evidence=f"It keeps {fmt(size)} at the peak that {unused}.",
            saves=estimated(gain - gain // SPREAD, gain + gain // SPREAD),
        )
    if holder.kind == "model":
        known = [variable_of(e.card_ledger, row) for row in rows[at_peak].tolist()]
        model = common_place(place.path for place in known if place is not None)
        return RULE.finding(
            title=f"`{model or holder.text}` lives on while another model is loaded: release it "
            f"before, with what refers to it: {fmt(gain)} less at the peak",
            evidence=f"It holds {fmt(size)} at the peak that {unused}.",
            saves=simulated(gain),
        )
    if holder.kind == "results":
        count = int(at_peak.sum())
        return RULE.finding(
            title=f"No operator uses {count} tensors that `{holder.text}` returns: "
            f"{fmt(gain)} less at the peak without them (`output_hidden_states=False`)",
            evidence=f"Its result keeps {fmt(size)} at the peak that {unused}. A hook on the "
            "layers that are wanted keeps only these.",
            saves=estimated(gain - size // count, gain),  # the last layer's lives while it is used
        )
    if holder.kind == "line":
        line = allocation_lines(e.card_ledger)[int(rows[np.argmax(a.block[rows])])].lines[0]
        made = f" (`{shorten(line.text)}`)" if line.text else ""
        return RULE.finding(
            title=f"Release what {line.place}{line.inside} makes behind its last use: {fmt(gain)} "
            "less at the peak",
            evidence=f"{fmt(size)} of it{made} live at the peak that {unused}.",
            saves=simulated(gain),
        )
    names = _names(e, holder, rows)
    shown = " and ".join(f"`{name}`" for name in names)
    where = f" in {holder.function}" if holder.function else ""
    never = bool((since <= a.allocated_at[rows]).all())
    return RULE.finding(
        title=f"No operator uses {shown}{where}: {fmt(gain)} less at the peak without"
        if never
        else f"Release {shown} behind the last use{where}: {fmt(gain)} less at the peak",
        evidence=f"{'They hold' if len(names) > 1 else 'It holds'} {fmt(size)} at the peak that "
        f"{unused}.",
        saves=simulated(gain),
        code=f"del {names[0]}   # behind the last use" if names[0].isidentifier() else None,
    )


def _names(e: Evidence, holder: UnusedHolder, rows: Ints) -> list[str]:
    """Return the variables that keep most, or else the one that has them all."""
    sizes: Counter[str] = Counter()
    for row, size in zip(rows.tolist(), e.card_ledger.allocations.block[rows], strict=True):
        place = variable_of(e.card_ledger, row)
        if place is not None and place.path.startswith(holder.text):
            sizes[place.path.partition("[")[0]] += int(size)
    large = [name for name, size in sizes.items() if size >= PART * sum(sizes.values())]
    if not large:
        return [holder.text]
    return large if len(large) <= LISTED else [common_place(large) or holder.text]


def _common_function(e: Evidence, rows: Ints) -> str:
    """Return the user's innermost function that made most allocations."""
    lines, block = allocation_lines(e.card_ledger), e.card_ledger.allocations.block
    made = [(lines[row], int(block[row])) for row in rows.tolist() if row in lines]
    stacks = [((*line.lines, *line.callers)[::-1], size) for line, size in made]
    least = MOST * sum(size for _, size in stacks)
    common: list[UserLine] = []
    while True:
        depth = len(common)
        sizes: Counter[tuple[str, str]] = Counter()
        there = [(stack[depth], stack, size) for stack, size in stacks if len(stack) > depth]
        for line, _, size in there:
            sizes[line.frame.file, line.frame.function] += size
        function, size = max(sizes.items(), key=itemgetter(1), default=(None, 0))
        if function is None or size < least:
            break
        stacks = [
            (stack, size)
            for line, stack, size in there
            if (line.frame.file, line.frame.function) == function
        ]
        common.append(stacks[0][0][depth])
    called = [one.inside.removeprefix(" in ") for one in reversed(common) if one.inside]
    if called:
        return ", called by ".join(called[:LISTED])
    return common[-1].place if common else "a forward"


def _line_behind(e: Evidence, position: int) -> UserLine | None:
    """Return the line of the first large allocation from a position on.

    None if there is none.
    """
    a, lines = e.card_ledger.allocations, allocation_lines(e.card_ledger)
    later = [row for row in lines if a.allocated_at[row] >= position]
    first = min(later, key=lambda row: int(a.allocated_at[row]), default=None)
    return None if first is None else lines[first].lines[0]


RULE = Rule(name="unused_memory", text=__doc__, check=check, general=True)
