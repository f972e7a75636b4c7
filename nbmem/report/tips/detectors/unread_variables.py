"""Find variables that hold tensors at the peak and are not read any more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HolderKind
from nbmem.core.session.source_files import TOP_LEVEL
from nbmem.core.session.tensor_names import without_shape
from nbmem.core.session.variable_paths import parse_path
from nbmem.report.analysis.allocation_lines import AllocationLine, allocation_lines
from nbmem.report.analysis.source_lines import name_of
from nbmem.report.ledger.observations import rows_at

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.tips.evidence import Evidence

    Variable = tuple[str, str]
    """A variable, and its function (`main()`), or "" at the top level of the script."""

NOT_DATA = frozenset(
    (Category.OPTIMIZER_STATE, Category.GRADIENTS, Category.WORKSPACE, Category.COMMUNICATION)
)
"""What belongs to a training, which a variable of its own ends."""
_ASSIGNED = re.compile(r"([^\W\d]\w*)(?:: [^=]+)? = ")
_DELETED = (HolderKind.NAME, HolderKind.GRAPH)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadVariable:
    """Tensors that live at the peak, and that only unread variables hold.

    Attributes:
        names: The variables.
        function: The function that has them; "" for a script's own.
        line: The first line known to run behind their last use: `train.py:12`.
        rows: Their allocations.
        since: The position from which nothing reads them, for each allocation.
    """

    names: tuple[str, ...]
    function: str
    line: str
    rows: Ints
    since: Ints

    @property
    def code(self) -> str:
        """The statement that releases them."""
        return f"del {', '.join(self.names)}"

    @property
    def evidence(self) -> str:
        """The beginning of a sentence: which line reads them no more."""
        return f"No line from {self.line} on reads {' or '.join(self.names)}"


def joined(variables: Sequence[UnreadVariable]) -> UnreadVariable:
    """Join variables into one, with the line and the function of the first."""
    return replace(
        variables[0],
        names=tuple(dict.fromkeys(name for one in variables for name in one.names)),
        rows=np.concatenate([one.rows for one in variables]),
        since=np.concatenate([one.since for one in variables]),
    )


class _Moments:
    """The moments from which a variable is not read, up to the peak."""

    def __init__(self, e: Evidence) -> None:
        fact: dict[str, Any] = e.fact("lines") or {}
        self._frames = fact.get("frames", [])
        unread = dict(fact.get("unread", ()))
        card = e.trace.info.index
        rows = [(event, stack) for device, event, stack in fact.get("rows", ()) if device == card]
        self._found: dict[Variable, list[tuple[int, int]]] = {}
        self.callees: dict[Variable, Any] = {}
        for event, stack in sorted(rows) if unread else ():
            stack_frames = [*fact["stacks"][stack][1:], *fact["outer"][stack]]
            for frame in {*self._outside_of_modules(stack_frames)} & unread.keys():
                function = self._frames[frame][2]
                where = "" if function.startswith(TOP_LEVEL) else f"{function}()"
                for name, callees in unread[frame].items():
                    self._found.setdefault((name, where), []).append((event, frame))
                    self.callees[name, where] = callees

    def _outside_of_modules(self, frames: list[int]) -> list[int]:
        """Return the frames around all calls of modules.

        What a forward has in variables is freed when it returns.
        """
        inside = [at for at, frame in enumerate(frames) if self._frames[frame][2] == "forward"]
        return frames[max(inside, default=-1) + 1 :]

    def first(self, variable: Variable, born: int) -> tuple[int, str] | None:
        """Return the first such moment of an allocation, and its line."""
        for event, frame in self._found.get(variable, ()):
            if event > born:
                file, line, *_ = self._frames[frame]
                return event, f"{name_of(file)}:{line}"
        return None


def unread_at_peak(e: Evidence) -> frozenset[tuple[str, str, str]]:
    """Return the variables that nothing reads from the peak on.

    Each is a file, a function that runs then, and a name. Empty where no line is known of it.
    """
    fact: dict[str, Any] = e.fact("lines") or {}
    peak = e.trace.info.index, e.report.peak.at.event - 1
    unread = dict(fact.get("unread", ()))
    found: set[tuple[str, str, str]] = set()
    for stack in [stack for device, at, stack in fact.get("rows", ()) if (device, at) == peak]:
        for index in (*fact["stacks"][stack][1:], *fact["outer"][stack]):
            file, _, function, _ = fact["frames"][index]
            found.update((file, function, name) for name in unread.get(index, ()))
    return frozenset(found)


def unread_variables(e: Evidence) -> list[UnreadVariable]:
    """Return the variables that nothing reads at the peak, or behind it."""
    moments = _Moments(e)
    if not moments.callees:
        return []
    found: dict[tuple[tuple[str, ...], str], list[tuple[int, int, str]]] = {}
    for row, variables in _held_at_peak(e, moments):
        born = int(e.card_ledger.allocations.allocated_at[row])
        first = [moments.first(one, born) for one in variables]
        if None in first:
            continue
        since, line = max(one for one in first if one is not None)
        key = tuple(sorted({name for name, _ in variables})), variables[0][1]
        found.setdefault(key, []).append((row, since, line))
    return [
        UnreadVariable(
            names=names,
            function=function,
            line=min(mine, key=lambda one: one[1])[2],
            rows=np.array([row for row, *_ in mine], np.int64),
            since=np.array([since for _, since, _ in mine], np.int64),
        )
        for (names, function), mine in found.items()
    ]


def _held_at_peak(e: Evidence, moments: _Moments) -> Iterator[tuple[int, list[Variable]]]:
    """Yield allocations at the peak with all variables that hold them."""
    ledger, a, top = e.card_ledger, e.card_ledger.allocations, e.report.peak.at.event
    data = ~np.isin(ledger.category, [*NOT_DATA])
    names = [] if e.trace.calls is None else np.unique(e.trace.calls.name).tolist()
    modules = {_last(e.session.names[index]) for index in names}  # they hold none of their inputs
    lines = allocation_lines(ledger)
    at_end = {e.row_of(held): held for held in e.held}
    rows = np.flatnonzero(data & (a.allocated_at < top) & (a.freed >= top) & ~_saved(e))
    for row in rows.tolist():
        if a.freed[row] >= ledger.events:
            held = at_end.get(row)
            ways = () if held is None else held.holders
            if ways and all(way.kind in _DELETED for way in ways):
                found = [parse_path(way.path) for way in ways]
                variables = list(
                    {(way.root, p.function) for way, p in zip(ways, found, strict=True)}
                )
                if all(name.isidentifier() and not where for name, where in variables):
                    yield row, variables
        elif ledger.category[row] not in (Category.WEIGHTS, Category.BUFFERS):
            variable = _local(ledger.name(row), lines.get(row), moments)
            given = None if variable is None else moments.callees.get(variable)
            if variable is not None and given is not None and modules.issuperset(map(_last, given)):
                yield row, [variable]


def _local(name: str | None, line: AllocationLine | None, moments: _Moments) -> Variable | None:
    """Return the variable of a function that holds a tensor, or None.

    Without a recorded name it is the one that the tensor's own line assigns.
    """
    place = parse_path(without_shape(name or ""))
    if place.function:
        return None if place.by_graph else (place.variable, place.function)
    for own in reversed(line.lines if line is not None else ()):
        assigned = _ASSIGNED.match(own.text)
        variable = (assigned[1], f"{own.frame.function}()") if assigned else None
        if variable in moments.callees:
            return variable
    return None


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _saved(e: Evidence) -> Mask:
    """Return a mask of what a graph may have saved that lives at the peak."""
    ledger, seen = e.card_ledger, e.trace.storage_labels
    found = np.zeros(len(ledger.allocations.addr), bool)
    top = e.report.peak.at.event
    later = [
        s for _, s in ledger.phases.spans if s.name == "backward" and ledger.bounds(s)[1] > top
    ]
    if later:
        saved = seen.category == Category.ACTIVATIONS
        rows = rows_at(ledger.allocations, seen.addr[saved], seen.position[saved], ledger.events)
        found[rows[rows >= 0]] = True
    return found
