"""Memory lives on behind the last operator that uses it.

What it sees
    Tensors that variables, lists or attributes keep although no operator reads or writes them any
    more: a batch during its backward, the list that was joined, a copy of a model. And what a
    graph saved which no backward reads. Only a virtual card knows what operators use. It speaks if
    the peak is a quarter lower without them, or a tenth where that is 1% of the card, and if no
    other tip saves nearly as much. What lives at the end of a notebook's cell is left alone: the
    next cell may use it.
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

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.source_files import TOP_LEVEL
from nbmem.report.analysis.allocation_lines import UserLine, allocation_lines, shorten
from nbmem.report.analysis.growth_candidates import common_place, variable_of
from nbmem.report.analysis.unused_memory import unused_memory
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.events import Frame
    from nbmem.report.analysis.unused_memory import Unused
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

_OF_TRAINING = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.OUTPUT_GRADIENTS,
    Category.WORKSPACE,
    Category.COMMUNICATION,
)
"""What other rules tell of, or the training itself releases."""
_CONTAINER = re.compile(r"^[\w.]*\w(?=[.\[])|^\w+")


class _Keeper(NamedTuple):
    """What keeps unused memory.

    Attributes:
        kind: `variable`, `graph` or `line`.
        text: The variable with its container; else the line's function.
        function: The function that has the variable; else the line's file.
    """

    kind: str
    text: str
    function: str


def check(e: Evidence) -> Findings:
    """Find the holder of unused memory without which the peak is lowest."""
    unused, a = unused_memory(e.card_ledger), e.card_ledger.allocations
    best: tuple[int, _Keeper, Ints] | None = None
    for keeper, places in _by_keeper(e, unused).items():
        rows = unused.rows[places]
        if e.worth(int(a.block[rows].sum())):
            gain = e.peak_saving(rows, unused.since[places])
            if best is None or gain > best[0]:
                best = gain, keeper, np.array(places, np.int64)
    if best is not None and e.is_needless(best[0]):
        gain, keeper, places = best
        yield _finding(e, keeper, unused.rows[places], unused.since[places], gain)


def _by_keeper(e: Evidence, unused: Unused) -> dict[_Keeper, list[int]]:
    """Return the indices of unused allocations by what keeps them.

    Those of one line and size have one keeper: an object's attribute has another name in a method.
    """
    ledger, lines = e.card_ledger, allocation_lines(e.card_ledger)
    at_end = ledger.allocations.freed[unused.rows] >= ledger.events
    open_end = at_end & (e.fact("notebook") is not False)
    counts = ~open_end & ~np.isin(ledger.category[unused.rows], _OF_TRAINING)
    found: dict[_Keeper, list[int]] = defaultdict(list)
    last: dict[tuple[Frame, int], _Keeper] = {}
    for at in np.flatnonzero(counts)[::-1].tolist():
        row = int(unused.rows[at])
        keeper = _keeper(e, row, in_backward=bool(unused.in_backward[at]))
        if keeper is not None and row in lines:
            kind = lines[row].lines[0].frame, int(ledger.allocations.requested[row])
            keeper = last.setdefault(kind, keeper)
        if keeper is not None:
            found[keeper].append(at)
    return found


def _keeper(e: Evidence, row: int, *, in_backward: bool) -> _Keeper | None:
    """Return what keeps an allocation; None if nothing tells."""
    place = variable_of(e.card_ledger, row)
    if place is not None:
        container = _CONTAINER.match(place.path)
        return _Keeper("variable", container[0] if container else place.path, place.function)
    line = allocation_lines(e.card_ledger).get(row)
    if line is None:
        return None
    frame = line.lines[0].frame
    category = e.card_ledger.category[row]
    if category == Category.ACTIVATIONS and not in_backward:
        return _Keeper("graph", frame.function, frame.file)
    if category == Category.UNKNOWN:
        return _Keeper("line", frame.function, frame.file)
    return None  # a call's arguments live as long as the call


def _finding(e: Evidence, keeper: _Keeper, rows: Ints, since: Ints, gain: int) -> Finding:
    a, lines = e.card_ledger.allocations, allocation_lines(e.card_ledger)
    top = e.report.peak.at.event
    there = rows[(a.allocated_at[rows] < top) & (a.freed[rows] >= top)]
    size = int(a.block[there].sum())
    behind = _line_behind(e, int(since[np.isin(rows, there)].min(initial=e.card_ledger.events)))
    from_there = f" from {behind.place} on" if behind is not None else " any more"
    code = None
    if keeper.kind == "variable":
        own = [variable_of(e.card_ledger, row) for row in rows.tolist()]
        paths = [one.path for one in own if one is not None and one.path.startswith(keeper.text)]
        place = common_place(paths)
        where = f" in {keeper.function}" if keeper.function else ""
        what = f"`{place}`{where}"
        title = f"{what} behind its last use: {fmt(gain)} less at the peak without it"
        evidence = f"It keeps {fmt(size)} at the peak that no operator uses{from_there}."
        if place.isidentifier():
            code = f"del {place}   # behind the last use"
    else:
        line = lines[int(max(rows.tolist(), key=lambda row: int(a.block[row])))].lines[0]
        text = f" (`{shorten(line.text)}`)" if line.text else ""
        inside = "" if keeper.text.startswith(TOP_LEVEL) else f" in {keeper.text}()"
        if keeper.kind == "graph":
            title = f"No backward uses what is saved{inside or f' at {line.place}'}: {fmt(gain)} "
            title += "less at the peak under torch.no_grad()"
            evidence = f"Graphs keep {fmt(size)} of {line.place}{text} at the peak, which no "
            evidence += "operator reads any more."
        else:
            title = f"What {line.place}{inside} makes lives on behind its last use: {fmt(gain)} "
            title += "less at the peak without it"
            evidence = f"{fmt(size)} of it{text} live at the peak, and no operator uses them"
            evidence += f"{from_there}."
    return RULE.finding(title=title, evidence=evidence, saves=simulated(gain), code=code)


def _line_behind(e: Evidence, position: int) -> UserLine | None:
    """Return the line of the first large allocation from a position on, or None."""
    a, lines = e.card_ledger.allocations, allocation_lines(e.card_ledger)
    later = [row for row in lines if a.allocated_at[row] >= position]
    first = min(later, key=lambda row: int(a.allocated_at[row]), default=None)
    return None if first is None else lines[first].lines[0]


RULE = Rule(name="unused_memory", text=__doc__, check=check, general=True)
