"""Memory lives on behind the last operator that uses it.

What it sees
    Tensors that variables, lists or attributes keep although no operator reads or writes them any
    more: a batch during its backward, the list that was joined, a copy of a model. And what a
    graph saved for no backward. Only a virtual card knows what operators use. It speaks if the peak
    is a tenth lower without them and that is 1% of the card, and if no other tip saves nearly as
    much. What lives at the end of a notebook's cell is left alone: the next cell may use it.
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
from bisect import bisect_right
from collections import Counter, defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import saver_of, without_shape
from nbmem.report.analysis.allocation_lines import UserLine, allocation_lines, shorten
from nbmem.report.analysis.growth_candidates import common_place, variable_of
from nbmem.report.analysis.unused_memory import unused_memory
from nbmem.report.tips.evidence import NEEDLESS, NEEDLESS_OF_CARD
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints, Mask
    from nbmem.core.session.events import Frame
    from nbmem.report.analysis.unused_memory import Unused
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

    _Kind = tuple[Frame, int]
    """A line, and the size of what it made."""

_OF_MODELS = (Category.WEIGHTS, Category.BUFFERS)
"""What the last pass used in vain stays for the next one; only what nothing ever used is told."""
_OF_TRAINING = (
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.OUTPUT_GRADIENTS,
    Category.WORKSPACE,
    Category.COMMUNICATION,
)
"""What other rules tell of, or the training itself releases."""
MOST = 0.8
"""Part of the memory that one function has made which a title names."""
NEVER = 1 << 62
LATE = 0.9
"""Part of the recording behind which a use shows that more may follow."""
MUCH = 0.25
"""Part of the peak from which unused memory is looked at."""
LISTED = 2
"""Variables that a title names; of more it names what has them all."""
_CALLS = ("forward", "inference")
PART = 0.1
"""Part of the memory from which a title names a variable."""
_CONTAINER = re.compile(r"^[\w.]*\w(?=[.\[])|^\w+")


class _Keeper(NamedTuple):
    """The holder of unused memory.

    Attributes:
        kind: `variable`, `line` or `graph`.
        text: The variable with its container, or the line's function.
        function: The function that has the variable, or the line's file.
    """

    kind: str
    text: str = ""
    function: str = ""


_GRAPH = _Keeper("graph")


def check(e: Evidence) -> Findings:
    """Find the holder of unused memory without which the peak is lowest."""
    unused, a = unused_memory(e.card_ledger), e.card_ledger.allocations
    best: tuple[int, _Keeper, Ints] | None = None
    for keeper, indices in _by_keeper(e, unused).items():
        places = np.array(indices, np.int64)
        rows = unused.rows[places]
        if e.worth(int(a.block[rows].sum())):
            gain = e.peak_saving(rows, unused.since[places])
            if best is None or gain > best[0]:
                best = gain, keeper, places
    if best is not None and _is_worth_it(e, best[0]):
        gain, keeper, places = best
        yield _finding(e, keeper, unused.rows[places], unused.since[places], gain)


def _is_worth_it(e: Evidence, gain: int) -> bool:
    """Return whether the peak falls enough: every loop keeps a small batch too long."""
    return e.dominates(gain, NEEDLESS) and e.matters(gain, NEEDLESS_OF_CARD)


def _by_keeper(e: Evidence, unused: Unused) -> dict[_Keeper, list[int]]:
    """Return the indices of unused allocations by what keeps them.

    Those of one line and size have one keeper: an object's attribute has another name in a method.
    """
    ledger, lines = e.card_ledger, allocation_lines(e.card_ledger)
    a, made = ledger.allocations, _times_by_kind(e)
    found: dict[_Keeper, list[int]] = defaultdict(list)
    last: dict[_Kind, _Keeper] = {}
    known: dict[tuple[object, ...], _Keeper | None] = {}
    for at in np.flatnonzero(_counts(e, unused))[::-1].tolist():
        row, back = int(unused.rows[at]), bool(unused.in_backward[at])
        line = lines.get(row)
        alike = ledger.names[row], ledger.category[row], ledger.born_in[row], line, back
        if alike not in known:
            known[alike] = _keeper(e, row, in_backward=back)
        keeper = known[alike]
        if keeper is not None and line is not None:
            kind = line.lines[0].frame, int(a.requested[row])
            keeper = last.setdefault(kind, keeper)
            later = bisect_right(made[kind], int(unused.since[at]))
            again = later < len(made[kind]) and made[kind][later] < a.freed[row]
            if again and keeper.text.isidentifier() and _is_of_name(e, row):
                continue  # `x = ...` in a loop: the new one is made before the old one goes
        if keeper is not None:
            found[keeper].append(at)
    return {keeper: _in_vain(e, unused, indices) for keeper, indices in found.items()}


def _times_by_kind(e: Evidence) -> dict[_Kind, list[int]]:
    """Return when each line has made allocations of each size, ascending."""
    a = e.card_ledger.allocations
    made: dict[_Kind, list[int]] = defaultdict(list)
    for row, line in allocation_lines(e.card_ledger).items():
        made[line.lines[0].frame, int(a.requested[row])].append(int(a.allocated_at[row]))
    return {kind: sorted(times) for kind, times in made.items()}


def _is_of_name(e: Evidence, row: int) -> bool:
    """Return whether a plain variable holds an allocation."""
    place = variable_of(e.card_ledger, row)
    return place is not None and place.path.isidentifier()


def _counts(e: Evidence, unused: Unused) -> Mask:
    """Return a mask of what is unused for good and serves no training."""
    ledger, a = e.card_ledger, e.card_ledger.allocations
    category = ledger.category[unused.rows]
    never = unused.since <= a.allocated_at[unused.rows]
    goes_on = (e.fact("notebook") is not False) | (np.isin(category, _OF_MODELS) & ~never)
    # What a failed request or an error has ended would have used what lived then.
    end = max(ledger.refused.failed, default=ledger.events)
    ended = e.ran_out or e.session.error is not None
    open_end = (goes_on | ended) & (a.freed[unused.rows] >= end)
    # A model that only predicts has no use for its first layers while the last ones run.
    steps = (ledger.bounds(s)[0] for _, s in ledger.phases.spans if s.name == "optimizer")
    of_step = never | (unused.since > min(steps, default=NEVER))
    found: Mask = ~open_end & ~np.isin(category, _OF_TRAINING) & _is_at_a_peak(e, unused)
    return found & (of_step | ~np.isin(category, _OF_MODELS))


def _in_vain(e: Evidence, unused: Unused, indices: list[int]) -> list[int]:
    """Return what is left without a container that is in use until the end."""
    rows = unused.rows[indices]
    at_end = e.card_ledger.allocations.freed[rows] >= e.card_ledger.events
    last = unused.since[indices][at_end].max(initial=0)
    if last < LATE * e.card_ledger.events:
        return indices
    return [index for index, lives in zip(indices, at_end, strict=True) if not lives]


def _is_at_a_peak(e: Evidence, unused: Unused) -> Mask:
    """Return a mask of what is unused where much is allocated.

    The rest hardly lowers the peak: what is released there must not be more than remains.
    """
    curve = e.card_ledger.allocated
    high = np.append(0, np.cumsum(curve >= MUCH * curve.max()))
    until = e.card_ledger.allocations.freed[unused.rows]
    found: Mask = high[np.minimum(until, len(curve) - 1) + 1] > high[np.maximum(unused.since, 0)]
    return found


def _keeper(e: Evidence, row: int, *, in_backward: bool) -> _Keeper | None:
    """Return what keeps an allocation; None if nothing tells."""
    place = variable_of(e.card_ledger, row)
    if place is not None and place.path.isidentifier() and _is_result(e, row):
        return None  # `out = model(x)`: as everybody writes it
    if place is not None and place.by_graph:
        return None  # rules of their own tell of graphs that variables keep
    if place is not None:
        container = _CONTAINER.match(place.path)
        return _Keeper("variable", container[0] if container else place.path, place.function)
    category = e.card_ledger.category[row]
    if category == Category.ACTIVATIONS:
        saved = saver_of(without_shape(e.card_ledger.name(row) or "")) is not None
        return _GRAPH if saved and not (in_backward or _is_freed_by_backward(e, row)) else None
    line = allocation_lines(e.card_ledger).get(row)
    if category == Category.UNKNOWN and line is not None:
        frame = line.lines[0].frame
        return _Keeper("line", frame.function, frame.file)
    return None  # a call's arguments live as long as the call


def _is_freed_by_backward(e: Evidence, row: int) -> bool:
    """Return whether a backward has released a saved tensor.

    Some operators save a tensor for its shape alone: `gather`, `index_add`.
    """
    phases = e.card_ledger.phases
    freed = e.card_ledger.allocations.freed[[row]]
    return bool(phases.named(phases.of(freed), "backward")[0])


def _is_result(e: Evidence, row: int) -> bool:
    """Return whether a module's call made an allocation."""
    line = allocation_lines(e.card_ledger).get(row)
    if line is None:
        phase = int(e.card_ledger.born_in[row])
        return phase >= 0 and e.card_ledger.phases.names[phase] in _CALLS
    functions = {one.frame.function for one in (*line.lines, *line.callers)}
    return line.by_module or "forward" in functions


def _finding(e: Evidence, keeper: _Keeper, rows: Ints, since: Ints, gain: int) -> Finding:
    a, top = e.card_ledger.allocations, e.report.peak.at.event
    at_peak = (a.allocated_at[rows] < top) & (a.freed[rows] >= top)
    size = int(a.block[rows[at_peak]].sum())
    behind = _line_behind(e, int(since[at_peak].min(initial=e.card_ledger.events)))
    unused = f"no operator uses from {behind.place} on" if behind else "no operator uses any more"
    if keeper.kind == "graph":
        return RULE.finding(
            title=f"No backward reads what {_common_function(e, rows[at_peak])} saves: "
            f"{fmt(gain)} less at the peak under torch.no_grad()",
            evidence=f"Graphs keep {fmt(size)} of it at the peak that {unused}.",
            saves=simulated(gain),
        )
    if keeper.kind == "line":
        line = allocation_lines(e.card_ledger)[int(rows[np.argmax(a.block[rows])])].lines[0]
        made = f" (`{shorten(line.text)}`)" if line.text else ""
        return RULE.finding(
            title=f"Release what {line.place}{line.inside} makes behind its last use: {fmt(gain)} "
            "less at the peak",
            evidence=f"{fmt(size)} of it{made} live at the peak that {unused}.",
            saves=simulated(gain),
        )
    names = _names(e, keeper, rows)
    shown = " and ".join(f"`{name}`" for name in names)
    where = f" in {keeper.function}" if keeper.function else ""
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


def _names(e: Evidence, keeper: _Keeper, rows: Ints) -> list[str]:
    """Return the variables that keep most, or else the one that has them all."""
    sizes: Counter[str] = Counter()
    for row, size in zip(rows.tolist(), e.card_ledger.allocations.block[rows], strict=True):
        place = variable_of(e.card_ledger, row)
        if place is not None and place.path.startswith(keeper.text):
            sizes[place.path.partition("[")[0]] += int(size)
    large = [name for name, size in sizes.items() if size >= PART * sum(sizes.values())]
    return large if len(large) <= LISTED else [common_place(large) or keeper.text]


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
