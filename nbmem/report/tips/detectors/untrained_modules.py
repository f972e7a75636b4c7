"""Find frozen modules whose graphs a training keeps for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.allocation_lines import allocation_lines, allocation_place
from nbmem.report.tips.weight_names import split_name

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.tips.evidence import Evidence

LEFT = 0.9
"""Part of a module's activations that no backward frees, if none goes through them."""
FEWEST = 2
"""Passes of a module from which it is told."""

ITERATIONS, LINES = 3, 2
"""Iterations of a loop, and lines in it that leave something, from which it has a graph."""
LARGEST = 3
"""Tensors that a pass without a graph has at one time: a skip, a layer's input, its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntrainedModule:
    """A called module whose passes need no graph.

    Attributes:
        name: The module.
        low: By how much the peak falls at least without its graphs.
        high: By how much it falls at most.
        passes: Its passes with a graph.
    """

    name: str
    low: int
    high: int
    passes: int


def never_backward(e: Evidence) -> Iterator[UntrainedModule]:
    """Yield modules whose graphs end without a backward, beside others."""
    ledger, a, phases = e.card_ledger, e.card_ledger.allocations, e.card_ledger.phases
    passes = e.passes
    saved = _saved(e)
    for number, name in enumerate(passes.modules):
        rows = np.flatnonzero(saved & (passes.of == number))
        forwards = np.unique(ledger.born_in[rows])
        ended = phases.named(phases.of(a.freed[rows]), "backward")
        filled = (ledger.category == Category.GRADIENTS) & (passes.of == number)
        taken, size = int(a.block[rows[ended]].sum()), int(a.block[rows].sum())
        # The last pass may live.
        is_freed = bool(len(rows)) and (a.freed[rows] < ledger.events).mean() >= LEFT / 2
        is_left = len(forwards) >= FEWEST and not filled.any() and taken <= (1 - LEFT) * size
        if is_left and is_freed:
            yield _module(e, name, rows, rows[:0], len(forwards))


def never_stepped(e: Evidence) -> Iterator[UntrainedModule]:
    """Yield modules with gradients that no optimizer has, or clears."""
    ledger, passes, saved = e.card_ledger, e.passes, _saved(e)
    for number, _ in e.once(_unstepped):
        mine = passes.of == number
        made = np.isin(ledger.category, (Category.GRADIENTS, Category.OUTPUT_GRADIENTS))
        activations = np.flatnonzero(saved & mine)
        count = len(np.unique(ledger.born_in[activations]))
        name = passes.modules[number]
        yield _module(e, name, activations, np.flatnonzero(mine & made), count)


def unstepped_gradients(e: Evidence) -> Mask:
    """Return a mask of gradients that no optimizer has or clears."""
    found = np.zeros(len(e.card_ledger.allocations), bool)
    for _, rows in e.once(_unstepped):
        found[rows] = True
    return found


def _unstepped(e: Evidence) -> list[tuple[int, Ints]]:
    """List modules that no optimizer has, by number, with their gradients.

    A copy of a trained module has the shapes of an optimizer's weights. Those of modules whose
    gradients are cleared are taken first.
    """
    ledger, a, phases = e.card_ledger, e.card_ledger.allocations, e.card_ledger.phases
    stepped = [ledger.bounds(s)[0] for _, s in phases.spans if s.name == "optimizer"]
    if len(stepped) < FEWEST or not e.optimizers:
        return []
    theirs = Counter(str(tuple(shape)) for one in e.optimizers for shape in one["shapes"])
    left: list[tuple[int, Ints, Counter[str]]] = []
    gradients = np.flatnonzero(ledger.category == Category.GRADIENTS)
    for number in range(len(e.passes.modules)):
        rows = gradients[e.passes.of[gradients] == number]
        forms = {form for row in rows.tolist() if (form := split_name(ledger.name(row) or ""))}
        shapes = Counter(form[1].rpartition(" ")[0] for form in forms)
        kept = (a.allocated_at[rows] < stepped[0]) & (a.freed[rows] >= ledger.events)
        if len(rows) and kept.all():
            left.append((number, rows, shapes))
        else:
            theirs -= shapes
    return [(number, rows) for number, rows, shapes in left if not shapes & theirs]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopWithGraph:
    """A loop in a function whose graph ends without a backward.

    Attributes:
        place: Its line with the most bytes: `train.py:28 in entropy`.
        rows: What the graph keeps.
        since: The position from which each of them is free without it: the next iteration's.
    """

    place: str
    rows: Ints
    since: Ints


def loops_with_graph(e: Evidence) -> Iterator[LoopWithGraph]:
    """Yield loops in training passes whose graphs end before the backward.

    Each iteration leaves equal tensors of two lines or more, and all go at one moment.
    """
    ledger, a, phases = e.card_ledger, e.card_ledger.allocations, e.card_ledger.phases
    births = np.sort(a.allocated_at)
    of_lines: dict[tuple[str, str, int, int], dict[int, list[int]]] = {}
    for row, line in allocation_lines(ledger).items():
        phase, frame = int(ledger.born_in[row]), line.lines[0].frame
        died = phases.of(a.freed[row : row + 1])[0]
        if phase >= 0 and died == phase and phases.names[phase] == "forward" and not line.by_module:
            ended = int(np.searchsorted(births, a.freed[row]))
            key = frame.file, frame.function, phase, ended
            of_lines.setdefault(key, {}).setdefault(frame.line, []).append(row)
    for mine in of_lines.values():
        kept = {at: sorted(rows) for at, rows in mine.items() if len(rows) >= ITERATIONS}
        if len(kept) < LINES or len({len(rows) for rows in kept.values()}) > LINES:
            continue
        rows = np.array([row for own in kept.values() for row in own[:-1]], np.int64)
        following = [row for own in kept.values() for row in own[1:]]
        largest = max(kept.values(), key=lambda own: int(a.block[own].sum()))
        place = allocation_place(ledger, largest[0])
        if place is not None:
            yield LoopWithGraph(place=place, rows=rows, since=a.allocated_at[following])


def _saved(e: Evidence) -> Mask:
    ledger = e.card_ledger
    in_forward = ledger.phases.named(ledger.born_in, "forward")
    found: Mask = in_forward & (ledger.category == Category.ACTIVATIONS)
    return found


def _module(e: Evidence, name: str, rows: Ints, others: Ints, passes: int) -> UntrainedModule:
    """Return a module with what it saves, at most and at least.

    At least: without a graph, a pass has its largest tensors until it returns.
    """
    ledger, a, calls = e.card_ledger, e.card_ledger.allocations, e.trace.calls
    ends = np.zeros(0, np.int64)
    if calls is not None:
        theirs = [index for index in np.unique(calls.name) if e.session.names[index] == name]
        ends = np.sort(calls.last[np.isin(calls.name, theirs)])
    returns = np.append(ends, ledger.events)
    of_pass = np.searchsorted(ends, a.allocated_at[rows])
    beside = np.zeros(ledger.events + 1, np.int64)
    for one in np.unique(of_pass).tolist():
        own = rows[of_pass == one]
        begin = int(a.allocated_at[own].min())
        beside[begin : returns[one] + 1] = int(np.sort(a.block[own])[-LARGEST:].sum())
    without = e.allocated_without(rows)
    peak = e.report.peak.allocated
    high = e.peak_saving(np.concatenate([rows, others]))
    low = peak - int((without + beside).max())
    return UntrainedModule(name=name, low=max(0, low), high=high, passes=passes)
