"""Find what grows from iteration to iteration: holder, line and bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.allocation_lines import allocation_place
from nbmem.report.analysis.graph_holders import join_by_graph
from nbmem.report.analysis.growth_candidates import (
    Candidate,
    candidates_at,
    common_place,
    with_parts,
)
from nbmem.report.analysis.growth_exemptions import Exemptions
from nbmem.report.analysis.iterations import MIN_ITERATIONS, Iterations, Rise
from nbmem.report.analysis.joined_tensors import joined_tensors

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

    Rising = tuple[Candidate, Rise]

ALIKE = 0.99
"""Part of the largest step's peak from which another step counts as equally large."""
SHARED = 0.5
"""Part of its allocations that another variable may keep, too, before it is a second name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A variable that keeps more memory with each iteration of a loop.

    Attributes:
        root: What one would delete or change; None if no name is known.
        place: What gains, as code: `trainer.history`, `model.state`. None without a name.
        where: The function that has it, as it follows the place in a sentence: ` in evaluate()`.
            Empty for a variable of the notebook.
        others: Places that keep the same graphs and must be detached as well.
        line: The source line that allocated most of it; None if no stacks were taken.
        slope: Block bytes that an iteration adds (the median).
        held: Block bytes that it keeps at the position.
        graph_slope: Part of `slope` that only graphs keep.
        graph_held: Part of `held` that only graphs keep.
        iterations: How many iterations added something.
        works: False if the loop may only load data: nothing larger was allocated and freed.
        rows: The allocations that the place keeps itself, and those that a joined tensor had.
        graph_rows: Those that its graphs keep.
        joined: Whether it is one tensor that is made anew, each time larger.
        parts: The places inside `place` that gain, the largest first: `metric.preds`.
        begins: The position of each iteration's first addition, ascending.
    """

    root: str | None
    place: str | None
    where: str
    line: str | None
    slope: int
    held: int
    iterations: int
    works: bool
    rows: Ints
    graph_rows: Ints
    others: tuple[str, ...] = ()
    graph_slope: int = 0
    graph_held: int = 0
    joined: bool = False
    parts: tuple[str, ...] = ()
    begins: tuple[int, ...] = ()

    @property
    def title(self) -> str | None:
        """The place with its function, for a sentence; None without a name.

        Places inside it follow, if the growth is in several of them.
        """
        if self.place is None:
            return None
        return f"{with_parts(self.place, self.parts)}{self.where}"


def find_growth(
    card_ledger: CardLedger, until: int | None = None, candidates: list[Candidate] | None = None
) -> tuple[Growth, ...]:
    """Find the variables that gain with each iteration, the steepest first.

    What a graph keeps belongs to the variable with the graph. A variable that has reached its
    final size does not grow, nor does one whose items are replaced.

    Args:
        card_ledger: The card's ledger.
        until: The position at which growth is measured, such as that of an out-of-memory error;
            None for the end of the recording.
        candidates: The groups of allocations that live there; None to make them.
    """
    at = card_ledger.events if until is None else until
    candidates = candidates_at(card_ledger, at) if candidates is None else candidates
    iterations, exempt = Iterations(card_ledger, at), Exemptions(card_ledger, at)
    found: list[Rising] = []
    for candidate in (one for one in candidates if len(one.rows) >= MIN_ITERATIONS):
        rise = iterations.rise_of(candidate.rows, exempt.earlier_items(candidate))
        if rise is not None and not exempt.is_harmless(candidate, rise):
            found.append((candidate, rise))
    found = _with_optimizers_only(found)
    candidates = [one for one in candidates if one.standing is None]
    joined = joined_tensors(card_ledger, at, candidates, iterations)
    direct = _merge_by_root([one for one in found if not one[0].by_graph] + joined)
    by_graph = _merge_by_root([one for one in found if one[0].by_graph])
    grown = [_growth(card_ledger, at, *one) for one in _without_second_names(direct)]
    rises = {id(candidate): rise for candidate, rise in by_graph}
    for holders in join_by_graph(card_ledger, [candidate for candidate, _ in by_graph], candidates):
        first, *others = holders.carriers
        found_in = _growth(card_ledger, at, first, rises[id(first)])
        places = tuple(common_place(other.paths) for other in others)
        grown.append(_with_graphs(found_in, places))
    return tuple(sorted(_with_both(grown), key=lambda one: (-one.slope, -one.held)))


def _with_optimizers_only(found: list[Rising]) -> list[Rising]:
    """Leave out standing memory of variables that gain no optimizers.

    Their state is made in the first step, so each was made after the training of the one before.
    """
    gain = {(one.root, one.where) for one, _ in found if one.standing is Category.OPTIMIZER_STATE}
    return [
        (one, rise) for one, rise in found if one.standing is None or (one.root, one.where) in gain
    ]


def _merge_by_root(found: list[Rising]) -> list[Rising]:
    """Merge the growing parts of a variable: a metric's predictions, targets."""
    merged: dict[tuple[str, str], Rising] = {}
    others: list[Rising] = []
    for candidate, rise in found:
        if candidate.root is None:
            others.append((candidate, rise))
            continue
        key = candidate.root, candidate.where
        if key in merged:
            known, before = merged[key]
            merged[key] = known.with_rows(candidate), before.and_with(rise)
        else:
            merged[key] = candidate, rise
    return [*merged.values(), *others]


def _without_second_names(found: list[Rising]) -> list[Rising]:
    """Leave out variables for what another variable keeps already."""
    kept: list[Rising] = []
    known: set[int] = set()
    for candidate, rise in sorted(found, key=lambda one: (-one[1].slope, -len(one[0].rows))):
        rows = set(candidate.rows.tolist())
        if len(rows & known) < SHARED * len(rows):
            known |= rows
            kept.append((candidate, rise))
    return kept


def _growth(card_ledger: CardLedger, at: int, candidate: Candidate, rise: Rise) -> Growth:
    a, rows = card_ledger.allocations, candidate.rows
    places = Counter(filter(None, (allocation_place(card_ledger, row) for row in rows.tolist())))
    return Growth(
        root=candidate.root,
        place=common_place(candidate.paths) if candidate.paths else None,
        parts=candidate.parts(a.block),
        where=candidate.where,
        line=max(places, key=places.__getitem__, default=None),
        slope=rise.slope,
        held=int(a.block[rows[a.freed[rows] >= at]].sum()),
        iterations=rise.iterations,
        works=rise.works,
        joined=rise.joined,
        rows=rows,
        graph_rows=rows[:0],
        begins=rise.begins,
    )


def _with_graphs(grown: Growth, others: tuple[str, ...]) -> Growth:
    """Return the growth of what graphs keep."""
    return replace(
        grown,
        others=others,
        rows=grown.rows[:0],
        graph_rows=grown.rows,
        graph_slope=grown.slope,
        graph_held=grown.held,
    )


def _with_both(found: list[Growth]) -> list[Growth]:
    """Merge what a variable keeps itself with what its graphs keep."""
    merged: dict[tuple[str | None, str], Growth] = {}
    others: list[Growth] = []
    for one in found:
        key = one.root, one.where
        known = merged.get(key) if one.root is not None else None
        if known is None:
            (merged.setdefault(key, one) if one.root is not None else others.append(one))
            continue
        merged[key] = replace(
            known,
            slope=known.slope + one.slope,
            held=known.held + one.held,
            graph_slope=known.graph_slope + one.graph_slope,
            graph_held=known.graph_held + one.graph_held,
            graph_rows=one.graph_rows,
            others=one.others,
        )
    return [*merged.values(), *others]


def numbered_steps(card_ledger: CardLedger) -> tuple[Ints, Ints]:
    """Return the number of each step, and the position at which it ends.

    Both are ascending: steps in a file may have any numbers.
    """
    found: dict[int, int] = {}
    for span in card_ledger.session.spans:
        if span.kind == "phase" and span.step is not None:
            end = card_ledger.bounds(span)[1]
            found[span.step] = max(found.get(span.step, 0), end)
    numbers = np.array(sorted(found), np.int64)
    ends = np.array([found[step] for step in sorted(found)], np.int64)
    return numbers, np.maximum.accumulate(ends)


def step_ends(card_ledger: CardLedger) -> Ints:
    """Return the position at which each step ends, ascending."""
    return numbered_steps(card_ledger)[1]


def step_peaks(card_ledger: CardLedger) -> list[int]:
    """Return the peak of allocated bytes in each step.

    The first one includes what came before it.
    """
    ends = pairwise([0, *step_ends(card_ledger).tolist()])
    return [int(card_ledger.allocated[first : last + 1].max()) for first, last in ends]


def steps_are_equal(card_ledger: CardLedger) -> bool:
    """Return whether most steps allocate as much as the largest.

    If so, no batch is the longest.
    """
    tops = step_peaks(card_ledger)
    return 2 * sum(top >= ALIKE * max(tops) for top in tops) > len(tops)
