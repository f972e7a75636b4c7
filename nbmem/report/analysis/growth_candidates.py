"""Group live allocations by the variable that keeps them.

Each group is a candidate for growth: the items of one list, the graphs of one sum of losses.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import BEYOND
from nbmem.core.session.holders import HeldStorage, Holder, HolderKind
from nbmem.core.session.tensor_names import (
    in_traceback,
    is_graph_name,
    is_place,
    without_shape,
)
from nbmem.core.session.variable_paths import VariablePath, parse_path
from nbmem.report.analysis.iterations import MIN_ITERATIONS
from nbmem.report.analysis.program_names import is_expression
from nbmem.report.ledger.allocation_facts import NO_NAME

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

    _Key = tuple[str | None, str, str, bool, Category | None]

KEEPERS = frozenset(
    (
        HolderKind.NAME,
        HolderKind.TRACEBACK,
        HolderKind.CLOSURE,
        HolderKind.GENERATOR,
        HolderKind.GRAPH,
        HolderKind.FRAME,
        HolderKind.THREAD,
        HolderKind.MODULE,
    )
)
"""Kinds of holders that a program's own code fills. Other rules report the others."""
_NO_GROWTH = (Category.WORKSPACE, Category.COMMUNICATION)
_STANDING = {int(one): one for one in (Category.WEIGHTS, Category.OPTIMIZER_STATE)}
"""Categories that are no growth where a loop builds layers. They are growth where a program makes
one optimizer after another, each after it has trained with the last."""
JOINED_FACTOR = 4
"""A tensor that is freed with a list is none of its items if it is this many times as large as the
largest item: it is their concatenation."""
LISTED = 2
"""Places inside a variable that a sentence names."""
_ITEM = re.compile(r"\[[^\[\]]*\]")
_LAST = re.compile(r"\[\d+\]$")
_LAST_ITEM = re.compile(r"(\[[^\[\]]*\])+$")


def variable_of(card_ledger: CardLedger, row: int) -> VariablePath | None:
    """Return the variable that was read for an allocation, or None."""
    index = int(card_ledger.names[row])
    name = "" if index == NO_NAME else without_shape(card_ledger.texts[index])
    unknown = not name or is_graph_name(name) or is_place(name) or name.startswith("input ")
    return None if unknown else parse_path(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Allocations that one variable keeps alive.

    Attributes:
        root: The variable that one would delete or change; None if no name is known.
        where: Text on the function that has the variable (see `VariablePath.where`).
        by_graph: Whether autograd graphs keep them.
        rows: The allocations, ascending.
        paths: Their paths as code, in that order; empty without a name.
        standing: The one category of standing memory that they have; None for other memory.
    """

    root: str | None
    where: str
    by_graph: bool
    rows: Ints
    paths: tuple[str, ...]
    standing: Category | None = None

    def parts(self, block: Ints) -> tuple[str, ...]:
        """Return the places of the variable that hold items, the largest first.

        Args:
            block: Bytes of every allocation of the card.
        """
        sizes: Counter[str] = Counter()
        for path, size in zip(self.paths, block[self.rows].tolist(), strict=False):
            sizes[list_of(path)] += size
        return tuple(place for place, _ in sizes.most_common())

    def with_rows(self, other: Candidate) -> Candidate:
        """Return the candidate with another one's allocations as well."""
        paths = dict(zip(self.rows.tolist(), self.paths, strict=False))
        paths.update(zip(other.rows.tolist(), other.paths, strict=False))
        rows = sorted(paths)
        return replace(self, rows=np.array(rows, np.int64), paths=tuple(paths[row] for row in rows))


def candidates_at(card_ledger: CardLedger, until: int) -> list[Candidate]:
    """Group the allocations that live at a position by what keeps them.

    Allocations that live to the end are grouped by the paths that were found there. Allocations
    that were freed before are grouped by the names that were read in the loop. Unnamed ones are
    grouped if they are freed together, as the list of a function is when the function returns.
    """
    a, category = card_ledger.allocations, card_ledger.category
    rows = card_ledger.live(until)
    rows = rows[~np.isin(category[rows], _NO_GROWTH) & (a.addr[rows] < BEYOND)]
    groups = _Groups(card_ledger)
    last = rows[a.freed[rows] >= card_ledger.events]
    to_the_end = dict(zip(a.addr[last].tolist(), last.tolist(), strict=True))
    known: set[int] = set()
    standing = np.isin(category, list(_STANDING))
    for held in card_ledger.storages:
        row = to_the_end.get(held.addr)
        if row is not None:
            known.add(row)
            if not (standing[row] and a.allocated_at[row] < 0):  # no loop here has made those
                groups.add_held(row, held)
    for row in rows[~standing[rows]].tolist():
        if row not in known:
            groups.add_named(row)
    return groups.candidates()


def merge_by_root(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Merge the parts of a variable: lists of outputs and of losses."""
    merged: dict[tuple[str | None, str], Candidate] = {}
    for candidate in candidates:
        key = candidate.root, candidate.where
        merged[key] = merged[key].with_rows(candidate) if key in merged else candidate
    return list(merged.values())


class _Groups:
    """Allocations by root, function, path pattern, graph and category."""

    def __init__(self, card_ledger: CardLedger) -> None:
        self._card_ledger = card_ledger
        a = card_ledger.allocations
        self._allocated_before = np.searchsorted(np.sort(a.allocated_at), a.freed)
        self._found: dict[_Key, dict[int, str]] = defaultdict(dict)

    def add_held(self, row: int, held: HeldStorage) -> None:
        """Add an allocation to the groups of all its holders."""
        standing = self._standing(row)
        for holder in held.holders:
            in_exception = in_traceback(holder.path) and holder.kind is not HolderKind.TRACEBACK
            is_gradient = holder.path.endswith(".grad")  # each model of an ensemble has its own
            if holder.kind in KEEPERS and not (in_exception or is_gradient):
                place = _item_of_list(parse_path(holder.path))
                root = _root(holder, place)
                if standing is None or (holder.kind is HolderKind.NAME and not place.by_graph):
                    key = root, place.where, _pattern(place.path), place.by_graph, standing
                    self._found[key][row] = place.path

    def add_named(self, row: int) -> None:
        """Add an allocation by the name that it had while the program ran."""
        card_ledger, a = self._card_ledger, self._card_ledger.allocations
        place = variable_of(card_ledger, row)
        if place is not None:
            path = _LAST.sub("[...]", place.path)  # repetitions share the name of one item
            self._found[place.variable, place.where, _pattern(place.path), False, None][row] = path
        elif card_ledger.category[row] == Category.ACTIVATIONS and self._phase(row) == "forward":
            self._found[None, "", "", True, None][row] = ""
        else:
            pattern = self._freed_with(row)
            if a.freed[row] >= card_ledger.events:
                pattern = f"{pattern} {a.requested[row]}"
            self._found[None, "", pattern, False, None][row] = ""

    def _standing(self, row: int) -> Category | None:
        return _STANDING.get(int(self._card_ledger.category[row]))

    def _freed_with(self, row: int) -> str:
        """Return a key that an allocation shares with other items of its list.

        They were allocated at the same place, and no allocation lies between their frees.
        """
        stack = self._card_ledger.allocations.stack[row]
        return f"{self._allocated_before[row]} {self._phase(row)} {stack}"

    def _phase(self, row: int) -> str:
        phase = int(self._card_ledger.born_in[row])
        return "" if phase < 0 else str(self._card_ledger.phases.names[phase])

    def candidates(self) -> list[Candidate]:
        """Return the groups, with unnamed items in the group of their list."""
        self._name_items()
        candidates = []
        for (root, where, _, by_graph, standing), found in self._found.items():
            if standing is not None and len(found) < MIN_ITERATIONS:
                continue  # each weight of a model that was built once
            rows = np.array(sorted(found), np.int64)
            if root is None and not by_graph:
                rows = self._of_one_size(rows)
            paths = () if root is None else tuple(found[row] for row in rows.tolist())
            candidates.append(
                Candidate(
                    root=root,
                    where=where,
                    by_graph=by_graph,
                    rows=rows,
                    paths=paths,
                    standing=standing,
                )
            )
        return candidates

    def _of_one_size(self, rows: Ints) -> Ints:
        """Return those of the allocations that have the most frequent size.

        Of several such sizes it is the largest: lists of pictures and of their depths.
        """
        sizes = self._card_ledger.allocations.requested[rows]
        values, counts = np.unique(sizes, return_counts=True)
        same: Ints = rows[sizes == values[counts == counts.max()][-1]]
        return same

    def _name_items(self) -> None:
        """Move allocations to the list whose items are freed with them.

        Such an item has no name, or that of the variable from which the loop appends it.
        """
        lists, requested = self._lists(), self._card_ledger.allocations.requested
        sizes: dict[str, set[int]] = defaultdict(set)
        for shared, key in lists.items():
            sizes[shared].update(int(requested[row]) for row in self._found[key])
        for key, found in list(self._found.items()):
            root, where, _, by_graph, standing = key
            if by_graph or standing is not None or key in lists.values():
                continue
            for row in list(found):
                shared, size = self._freed_with(row), int(requested[row])
                of_list = lists.get(shared)
                if of_list is None:
                    continue
                is_item = root is None or (where == of_list[1] and size in sizes[shared])
                if is_item and size < JOINED_FACTOR * max(sizes[shared]):
                    del found[row]
                    self._found[of_list][row] = of_list[2]
            if not found:
                del self._found[key]

    def _lists(self) -> dict[str, _Key]:
        """Map what the items of a list share to the key of the list's group.

        The key of the map is `_freed_with` of an item.

        A list takes precedence over a dictionary: a loop's `batch["x"]` may have the item, too.
        """
        found: dict[str, _Key] = {}
        end = self._card_ledger.events
        freed = self._card_ledger.allocations.freed
        lists = [
            (key, rows)
            for key, rows in self._found.items()
            if key[0] is not None and "[...]" in key[2] and key[3:] == (False, None)
        ]
        for key, rows in sorted(lists, key=lambda one: any(map(_is_item, one[1].values()))):
            found.update((self._freed_with(row), key) for row in rows if freed[row] < end)
        return found


def _item_of_list(place: VariablePath) -> VariablePath:
    """Return the item of a list whose function closes over a variable.

    A list of callbacks grows by what each of them closes over.
    """
    keeper = place.closed_over_by
    if not _ITEM.search(keeper) or not is_expression(keeper):
        return place
    return place._replace(path=keeper, closed_over_by="")


def _root(holder: Holder, place: VariablePath) -> str:
    """Return the name of a root; for a failed function its variable."""
    return place.variable if holder.kind is HolderKind.TRACEBACK else holder.root


def _is_item(path: str) -> bool:
    """Return whether a path leads to an item of a list, not of a dictionary."""
    return path.endswith("[...]")


def _pattern(path: str) -> str:
    """Replace indices and keys in a path by `[...]`."""
    return _ITEM.sub("[...]", path)


def list_of(path: str) -> str:
    """Return the list that has an item: `net[0].saved` of `net[0].saved[3]`."""
    return _LAST_ITEM.sub("", path)


def with_parts(place: str, parts: Sequence[str]) -> str:
    """Write a place with those inside it that hold something.

    The place is empty where these have no variable in common.
    """
    if len(parts) < 2:
        return f"`{place}`"
    inside = " and ".join(f"`{part}`" for part in parts[:LISTED])
    inside += " and others" if len(parts) > LISTED else ""
    return f"`{place}` ({inside})" if place else inside


def common_place(paths: Iterable[str]) -> str:
    """Return the longest path that leads to all of these paths.

    `history['out']` of `history['out'][0]` and `history['out'][1]`.
    """
    ordered = sorted(set(paths))
    first, last = ordered[0], ordered[-1]
    if first == last:
        return first.removesuffix("[...]")
    pairs = zip(first, last, strict=False)
    place = first[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))]
    while place and not _is_whole(place, ordered):
        place = place[: max(place.rfind("."), place.rfind("["), 0)]
    return place.removesuffix("[...]")  # a key that cannot be written


def _is_whole(place: str, paths: list[str]) -> bool:
    """Return whether a common prefix of paths ends at a name or key."""
    ends = all(path[len(place) : len(place) + 1] in ("", ".", "[") for path in paths)
    return ends and place.count("[") == place.count("]")
