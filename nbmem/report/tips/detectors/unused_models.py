"""Find models that the program went on without.

They are still held at the end, or were held while the next one was built.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HeldStorage, Holder, HolderKind
from nbmem.core.session.tensor_names import STEP
from nbmem.report.analysis.before_return import out_of_reach
from nbmem.report.analysis.program_names import is_expression
from nbmem.report.tips.purpose_names import marks_intended_copy

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence

SUCCESSOR = 0.02
"""Part of a model's bytes that the one used after it has at least: a metric has fewer."""
MIN_OF_PEAK = 0.05
"""Part of the peak that a former model has at least."""
MANY = 4
"""Calls of the model that is used after another one was called once."""
MAX_MODELS = 100
"""Former models of a recording that are looked at, the first ones."""
_ROOT = re.compile(r"[^\W\d]\w*")
_FORM = re.compile(r"(\([\d, ]*\)) (\w+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedModel:
    """A model at the end that was last called before another was used.

    Attributes:
        name: Its name in the recorded calls.
        later: The name of the model that was used since.
        trained: Whether that one was trained.
        roots: The variables that reach its weights, and no weights of a model in use. Empty if it
            is an attribute of an object that has a model in use: then `name` is code.
        storages: What only these variables keep: weights, gradients and optimizer state. Of an
            attribute it is what only the attribute keeps.
    """

    name: str
    later: str
    trained: bool
    roots: tuple[str, ...]
    storages: list[HeldStorage]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedModel:
    """Former models of variables, freed when the next ones were built.

    Attributes:
        roots: The variables that were assigned anew, with those that hold the next model.
        rows: Allocations that were freed with the former models.
        since: For each of them, the position at which the next model's first weight was made.
    """

    roots: tuple[str, ...]
    rows: Ints
    since: Ints


def unused_models(e: Evidence) -> Iterator[UnusedModel]:
    """Yield the models that live at the end and are no longer called."""
    calls = _calls(e)
    steps = calls.pop(STEP, Uses(0, -1, 0))
    held: dict[str, list[HeldStorage]] = {}
    for storage, row in _weights(e):
        held.setdefault(_owner(calls, e.card_ledger.name(row)), []).append(storage)
    held.pop("", None)
    sizes = {name: sum(h.size for h in own) for name, own in held.items()}
    later = {name: _successor(name, calls, sizes, steps.last) for name in held}
    in_use = {
        way.root for name, own in held.items() if not later[name] for h in own for way in h.holders
    }
    for name, own in held.items():
        roots = {way.root for h in own for way in h.holders} - in_use
        if not later[name] or not all(map(_may_be_deleted, roots or {name.rpartition(".")[2]})):
            continue
        if roots:
            alone = [h for h in e.held if all(_is_variable(way, roots) for way in h.holders)]
        else:
            alone = [h for h in e.held if all(way.path.startswith(f"{name}.") for way in h.holders)]
        freed = {h.addr for h in alone}
        if 2 * sum(h.size for h in own if h.addr in freed) >= sizes[name]:
            yield UnusedModel(
                name=name,
                later=later[name],
                trained=calls[later[name]].first < steps.last,
                roots=tuple(sorted(roots)),
                storages=alone,
            )


class IdleModel(NamedTuple):
    """A model that is idle at the peak: another one is called.

    Attributes:
        name: Its name in the recorded calls.
        later: The name of the model that was called at the peak.
        rows: Its weights.
        since: The position of its last return.
    """

    name: str
    later: str
    rows: Ints
    since: int


def idle_at_peak(e: Evidence) -> Iterator[IdleModel]:
    """Yield models that are idle at the peak, and gone before a cell's end.

    A function keeps them to its end: the encoder of a text, while images are made. What a script
    has at its end is called by no other cell.
    """
    calls, ledger, a = _calls(e), e.card_ledger, e.card_ledger.allocations
    calls.pop(STEP, None)
    if len(calls) < 2:  # one waits for another; most programs call one
        return
    top = e.report.peak.at.event
    weights = ledger.category == Category.WEIGHTS
    there = weights & (a.allocated_at < top) & (a.freed >= top)
    there &= (a.freed < ledger.events) | out_of_reach(ledger)
    found: dict[str, list[int]] = {}
    for row in np.flatnonzero(there).tolist():
        found.setdefault(_owner(calls, ledger.name(row)), []).append(row)
    found.pop("", None)
    for name, own in found.items():
        since = calls[name].last
        later = [one for one, its in calls.items() if since < its.first and top <= its.last]
        if later and since < top and not marks_intended_copy(name):
            yield IdleModel(name, later[0], np.array(own, np.int64), since)


class Uses(NamedTuple):
    """Positions of a model's first and last return, and its calls."""

    first: int
    last: int
    calls: int


def _calls(e: Evidence) -> dict[str, Uses]:
    """Return the uses of each called model.

    Those of all optimizer steps together are under STEP. A part that is called by itself counts for
    the model that contains it.
    """
    found: dict[str, Uses] = {}
    calls = e.trace.calls
    if calls is None:
        return found
    names = {index: e.session.names[index] for index in np.unique(calls.name).tolist()}
    owners = {
        index: STEP if name.endswith(STEP) else _owner(names.values(), name)
        for index, name in names.items()
    }
    for at, index in zip(calls.last.tolist(), calls.name.tolist(), strict=True):
        name = owners[index]
        before = found.get(name, Uses(at, at, 0))
        found[name] = Uses(min(before.first, at), max(before.last, at), before.calls + 1)
    for name in map(partial(_owner, names.values()), e.fact("called_later") or ()):
        if name in found:  # this recording was cut
            found[name] = found[name]._replace(last=e.card_ledger.events)
    return found


def _owner(names: Iterable[str], path: str | None) -> str:
    """Return the outermost of the names that a path leads through, or ""."""
    return min((n for n in names if f"{path}.".startswith(f"{n}.")), key=len, default="")


def _weights(e: Evidence) -> Iterator[tuple[HeldStorage, int]]:
    """Yield the weights that are held at the end, with their allocations."""
    is_weight = (e.card_ledger.category == Category.WEIGHTS).tolist()
    for storage in e.held:
        row = e.row_of(storage)
        if row is not None and is_weight[row]:
            yield storage, row


def _successor(name: str, calls: dict[str, Uses], sizes: dict[str, int], stepped: int) -> str:
    """Return a model that was trained after another's last call, or "".

    It may also predict, if the two were called several times, each by itself, or if the first
    prepared once what the other one takes many times: a text encoder before the denoising.
    """
    own = calls[name]
    for other, its in calls.items():
        trained = its.first < stepped
        predicts = min(its.calls, own.calls) > 1 or its.calls >= MANY
        large = sizes.get(other, 0) >= SUCCESSOR * sizes[name]
        if own.last < its.first and large and (trained or predicts):
            return other
    return ""


def _may_be_deleted(root: str) -> bool:
    return root.isidentifier() and not marks_intended_copy(root)


def _is_variable(way: Holder, roots: set[str]) -> bool:
    return way.root in roots and way.kind in (HolderKind.NAME, HolderKind.GRAPH)


def replaced_models(e: Evidence) -> Iterator[ReplacedModel]:
    """Yield variables that held a model while its successor was built.

    The successor was not called before the former model was freed: it took the variable.
    """
    a, card_ledger = e.card_ledger.allocations, e.card_ledger
    weights = np.flatnonzero(card_ledger.category == Category.WEIGHTS)
    # Rows of one burst were freed with no allocation in between.
    burst = np.searchsorted(np.sort(a.allocated_at), a.freed)
    gone = weights[a.freed[weights] < card_ledger.events]
    sizes = np.bincount(burst[gone], a.block[gone])
    large = np.flatnonzero(sizes >= MIN_OF_PEAK * e.report.peak.allocated)
    found: dict[tuple[str, ...], list[tuple[Ints, int]]] = {}
    for number in large[:MAX_MODELS].tolist():
        together = np.flatnonzero(burst == number)
        former = together[card_ledger.category[together] == Category.WEIGHTS]
        next_ones = _successors_rows(e, former, weights)
        if next_ones is None:
            continue
        root = _root(e, former)
        roots = _holding(e, next_ones, root) if root and root == _root(e, next_ones) else ()
        if roots:
            begin = int(a.allocated_at[next_ones].min())
            roots = (_place(e, root, [*former, *next_ones]), *roots[1:])
            found.setdefault(roots, []).append((together[a.allocated_at[together] < begin], begin))
    for roots, groups in found.items():
        rows = np.concatenate([rows for rows, _ in groups])
        since = np.concatenate([np.full(len(rows), begin) for rows, begin in groups])
        yield ReplacedModel(roots=roots, rows=rows, since=since)


def _place(e: Evidence, root: str, weights: Sequence[int]) -> str:
    """Return the variable or attribute that was assigned anew.

    It is what all the called models have in common whose weights are given: `manager.model` of
    `manager.model.unet` and `manager.model.vae`.
    """
    calls = _calls(e)
    owners = {_owner(calls, e.card_ledger.name(row)) for row in weights} - {""}
    levels = zip(*(owner.split(".") for owner in owners), strict=False)
    place = ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
    return place if f"{place}.".startswith(f"{root}.") and is_expression(place) else root


def _holding(e: Evidence, rows: Ints, root: str) -> tuple[str, ...]:
    """Return the variables that hold a model at the end, one of them first.

    Optimizers and trainers were assigned anew as well. Empty where the model has a second name: it
    was built under it, perhaps from the former model's weights.
    """
    ways = [way for held in e.held_in(rows) for way in held.holders if way.kind is HolderKind.NAME]
    own = {way.path.removeprefix(root) for way in ways if way.root == root}
    others = [way for way in ways if way.root != root]
    if any(way.path.removeprefix(way.root) in own for way in others):
        return ()
    roots = (root, *sorted({way.root for way in others}))
    return roots if all(map(str.isidentifier, roots)) else ()


def _successors_rows(e: Evidence, former: Ints, weights: Ints) -> Ints | None:
    """Return the weights that were made before others were freed, or None.

    None if the former were not called, if one was called since, if their successor is too small or
    has the same weights in another type: it may have been made of them.
    """
    a, calls = e.card_ledger.allocations, e.trace.calls
    freed = int(a.freed[former].min())
    called = calls.last[calls.last <= freed] if calls is not None else np.zeros(0, np.int64)
    last = int(called.max(initial=-1))
    if a.allocated_at[former].max() >= last:
        return None
    made = weights[(a.allocated_at[weights] >= last) & (a.allocated_at[weights] < freed)]
    made = made[a.freed[made] > a.freed[former].max()]
    if 2 * a.block[made].sum() < a.block[former].sum():
        return None
    (shapes, types), (new_shapes, new_types) = _forms(e, former), _forms(e, made)
    return None if shapes == new_shapes and types != new_types else made


def _forms(e: Evidence, rows: Ints) -> tuple[Counter[str], set[str]]:
    """Return the shapes and the types of named allocations."""
    found = [_FORM.search(e.card_ledger.name(row) or "") for row in rows.tolist()]
    forms = [match for match in found if match is not None]
    return Counter(match[1] for match in forms), {match[2] for match in forms}


def _root(e: Evidence, rows: Ints) -> str:
    """Return the one variable in the names of weights, or ""."""
    found = {
        match[0] for row in rows.tolist() if (match := _ROOT.match(e.card_ledger.name(row) or ""))
    }
    return found.pop() if len(found) == 1 else ""
