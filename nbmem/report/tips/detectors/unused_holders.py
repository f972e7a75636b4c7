"""Find the holder of memory that no operator uses any more."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.session import Calls
from nbmem.core.session.source_files import TOP_LEVEL
from nbmem.core.session.tensor_names import saver_of, without_shape
from nbmem.core.session.variable_paths import parse_path
from nbmem.report.analysis.allocation_lines import allocation_lines
from nbmem.report.analysis.growth_candidates import variable_of
from nbmem.report.analysis.unused_memory import unused_memory
from nbmem.report.ledger.observations import rows_at
from nbmem.report.tips.detectors.unread_variables import unread_at_peak
from nbmem.report.tips.detectors.unused_for_good import (
    is_of_replaced_model,
    is_unused_for_good,
    left_in_vain,
)

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.events import Frame
    from nbmem.core.session.variable_paths import VariablePath
    from nbmem.report.analysis.allocation_lines import AllocationLine
    from nbmem.report.analysis.unused_memory import Unused
    from nbmem.report.tips.evidence import Evidence

    _Kind = tuple[Frame, int]
    """A line, and the size of what it made."""
    _Pass = tuple[int, tuple[Frame, ...]]

OF_VARIABLE = 2
"""Tensors of one size that a loop's variable has at a moment."""
_CALLS = ("forward", "inference")
_ASSIGNED = re.compile(r"([^\W\d]\w*) = ")
_CONTAINER = re.compile(r"^[\w.]*\w(?=[.\[])|^\w+")


class UnusedHolder(NamedTuple):
    """The holder of unused memory.

    Attributes:
        kind: `variable`, `line`, `graph`, `second graph`, which is that of a backward, `model`, for
            one that lives on while another one is loaded, or `results`, for those of a module's
            call without a graph.
        text: The variable with its container, the line's function, or the module.
        function: The function that has the variable, or the line's file.
        usual: Whether most programs keep it as long: a module's result, the temporaries of a
            function.
    """

    kind: str
    text: str = ""
    function: str = ""
    usual: bool = False


_GRAPH, _SECOND_GRAPH = UnusedHolder("graph"), UnusedHolder("second graph")


def unused_by_holder(e: Evidence) -> dict[UnusedHolder, tuple[Ints, Ints]]:
    """Return the unused allocations of each holder.

    They come with the position from which nothing uses each. Those of one line and size have one
    holder: an object's attribute has another name in a method.
    """
    ledger, unused = e.card_ledger, unused_memory(e.card_ledger)
    if not len(unused.rows):
        return {}  # on real cards: nothing else is computed
    a, lines, made = ledger.allocations, allocation_lines(ledger), _times_by_kind(e)
    found: dict[UnusedHolder, list[int]] = defaultdict(list)
    last: dict[_Kind, UnusedHolder] = {}
    known: dict[tuple[object, ...], UnusedHolder | None] = {}
    read, replaced = _read_graphs(e), is_of_replaced_model(e, unused)
    for at in np.flatnonzero(is_unused_for_good(e, unused, replaced))[::-1].tolist():
        row, back = int(unused.rows[at]), bool(unused.in_backward[at])
        line = lines.get(row)
        alike = ledger.names[row], ledger.category[row], ledger.born_in[row], line, back
        if alike not in known:
            known[alike] = _holder(e, row, read, in_backward=back)
        holder = known[alike]
        if holder is None and _is_of_second_graph(e, row, int(unused.since[at])):
            holder = _SECOND_GRAPH
        if holder is None:
            holder = _returned_by(e, row)
        if replaced[at] and (place := variable_of(ledger, row)) is not None:
            holder = UnusedHolder("model", place.variable)
        if holder is not None and line is not None:
            kind = line.lines[0].frame, int(a.requested[row])
            holder = last.setdefault(kind, holder)
            later = bisect_right(made[kind], int(unused.since[at]))
            again = later < len(made[kind]) and made[kind][later] < a.freed[row]
            if again and holder.text.isidentifier() and _is_of_name(e, row):
                continue  # `x = ...` in a loop: the new one is made before the old one goes
        if holder is not None:
            found[holder].append(at)
    own = {
        holder: _of_variable(e, unused, indices) if holder.usual else indices
        for holder, indices in found.items()
        if holder.kind != "results" or e.live_at_peak(unused.rows[indices]).sum() > OF_VARIABLE
    }
    left = {holder: left_in_vain(e, unused, indices) for holder, indices in own.items()}
    return {
        holder: (unused.rows[indices], unused.since[indices])
        for holder, indices in left.items()
        if indices
    }


def _of_variable(e: Evidence, unused: Unused, indices: list[int]) -> list[int]:
    """Return what a loop's variable holds: the last item and the next one.

    Of a size of which more live at the peak, a list or a graph has the others.
    """
    a, rows = e.card_ledger.allocations, unused.rows[indices]
    sizes = Counter(a.requested[rows[e.live_at_peak(rows)]].tolist())
    return [
        index
        for index, size in zip(indices, a.requested[rows].tolist(), strict=True)
        if sizes[size] <= OF_VARIABLE
    ]


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


def _holder(
    e: Evidence, row: int, read: frozenset[_Pass], *, in_backward: bool
) -> UnusedHolder | None:
    """Return what keeps an allocation; None if nothing tells.

    Args:
        e: The recording.
        row: The allocation.
        read: The passes whose graphs a backward has read.
        in_backward: Whether a backward has used it.
    """
    place = variable_of(e.card_ledger, row)
    line = allocation_lines(e.card_ledger).get(row)
    if place is not None and place.path.isidentifier() and _is_result(e, row):
        return _assigned(e, line)
    if place is not None:  # rules of their own tell of graphs that variables keep
        return None if place.by_graph else _named(_lasting(e, row, place))
    category = e.card_ledger.category[row]
    if category == Category.ACTIVATIONS and _pass_of(e, row) not in read:
        saved = saver_of(without_shape(e.card_ledger.name(row) or "")) is not None
        return _GRAPH if saved and not (in_backward or _is_freed_by_backward(e, row)) else None
    if category in (Category.ACTIVATIONS, Category.TEMPORARIES):
        return _assigned(e, line)
    if category == Category.UNKNOWN and line is not None:
        frame = line.lines[0].frame
        return UnusedHolder("line", frame.function, frame.file)
    return None  # a call's arguments live as long as the call


def _returned_by(e: Evidence, row: int) -> UnusedHolder | None:
    """Return the module whose call returned a tensor without a graph, or None.

    It was made in the call and freed behind it.
    """
    calls, a = e.once(_calls_in_order), e.card_ledger.allocations
    if e.card_ledger.category[row] != Category.TEMPORARIES:
        return None
    at = int(np.searchsorted(calls.first, a.allocated_at[row], side="right")) - 1
    if at < 0 or not calls.first[at] <= a.allocated_at[row] < calls.last[at] < a.freed[row]:
        return None
    name = e.session.names[int(calls.name[at])]
    return None if name.endswith("()") else UnusedHolder("results", name)


def _calls_in_order(e: Evidence) -> Calls:
    """Return the calls whose begin is known, by their begin."""
    calls = Calls.empty() if e.trace.calls is None else e.trace.calls
    known = np.flatnonzero(calls.first != NOT_KNOWN)
    return calls[known[np.argsort(calls.first[known], kind="stable")]]


def _lasting(e: Evidence, row: int, place: VariablePath) -> VariablePath:
    """Return the list that has a tensor which a loop's variable had first.

    More tensors live under the variable's name than a variable has.
    """
    ledger = e.card_ledger
    if e.live_at_peak(np.flatnonzero(ledger.names == ledger.names[row])).sum() <= OF_VARIABLE:
        return place
    return e.once(_later_places).get(place, place)


def _later_places(e: Evidence) -> dict[VariablePath, VariablePath]:
    """Return where tensors were seen at last, by their places before."""
    seen, texts = e.trace.storage_labels, e.session.names
    named = np.flatnonzero(seen.category == Category.USER_TENSORS)
    rows = rows_at(
        e.card_ledger.allocations, seen.addr[named], seen.position[named], e.card_ledger.events
    )
    names: dict[int, dict[int, int]] = defaultdict(dict)  # of each tensor, when it was seen last
    for row, label in zip(rows.tolist(), named.tolist(), strict=True):
        if row >= 0:
            names[row][int(seen.name[label])] = int(seen.position[label])
    found: dict[VariablePath, VariablePath] = {}
    for when in names.values():
        last = max(when, key=lambda name: when[name])
        place = parse_path(without_shape(texts[last]))
        for name, position in when.items():
            if position < when[last]:
                found[parse_path(without_shape(texts[name]))] = place
    return found


def _named(place: VariablePath) -> UnusedHolder:
    container = _CONTAINER.match(place.path)
    return UnusedHolder("variable", container[0] if container else place.path, place.function)


def _is_of_second_graph(e: Evidence, row: int, since: int) -> bool:
    """Return whether a backward saved it for one of its own that never came."""
    ledger, born = e.card_ledger, int(e.card_ledger.born_in[row])
    return (
        born >= 0
        and ledger.phases.names[born] == "backward"
        and ledger.category[row] == Category.ACTIVATIONS
        and int(ledger.phases.of(np.array([since]))[0]) == born
    )


def _assigned(e: Evidence, line: AllocationLine | None) -> UnusedHolder | None:
    """Return the variable to which a line assigns what it makes, else None.

    At the peak no line may read it any more: `x = block(x)` holds the old one until the block
    returns. In a backward only a result of the training loop is left in a variable.
    """
    name = None if line is None else _ASSIGNED.match(line.lines[0].text)
    if line is None or name is None:
        return None
    frame = line.lines[0].frame
    phases, top = e.card_ledger.phases, np.array([e.report.peak.at.event - 1])
    if phases.named(phases.of(top), "backward")[0]:
        unread = line.by_module and frame.function != "forward"
    else:
        unread = (frame.file, frame.function, name[1]) in e.once(unread_at_peak)
    if not unread:
        return None
    inside = "" if frame.function.startswith(TOP_LEVEL) else f"{frame.function}()"
    return UnusedHolder("variable", name[1], inside, usual=True)


def _read_graphs(e: Evidence) -> frozenset[_Pass]:
    """Return the passes of whose activations a backward has freed some."""
    ledger, freed = e.card_ledger, e.card_ledger.allocations.freed
    of_graph = ledger.category == Category.ACTIVATIONS
    by_backward = ledger.phases.named(ledger.phases.of(freed), "backward")
    return frozenset(_pass_of(e, row) for row in np.flatnonzero(of_graph & by_backward).tolist())


def _pass_of(e: Evidence, row: int) -> _Pass:
    """Return the forward pass that made an allocation.

    It is a phase, and the lines of the user's functions around all calls of modules: two passes may
    follow each other in one phase.
    """
    line = allocation_lines(e.card_ledger).get(row)
    frames = [] if line is None else [one.frame for one in (*line.lines, *line.callers)]
    inside = [at for at, frame in enumerate(frames) if frame.function == "forward"]
    return int(e.card_ledger.born_in[row]), tuple(frames[max(inside, default=-1) + 1 :])


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
