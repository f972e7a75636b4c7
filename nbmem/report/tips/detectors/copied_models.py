"""Find copies of the model's weights, and of what it has beside them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HeldStorage, HolderKind
from nbmem.core.session.tensor_names import VIEW
from nbmem.report.analysis.program_names import is_expression
from nbmem.report.ledger.observations import rows_at
from nbmem.report.ledger.reference_models import reference_models
from nbmem.report.tips.purpose_names import marks_intended_copy
from nbmem.report.tips.weight_names import split_name

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence

_SEPARATOR = re.compile(r"[.\[]")
ALIKE = 0.9
"""Part of the model's weights that a copy has at least."""


class Copy(NamedTuple):
    """A second copy of a model's tensors.

    Attributes:
        place: What has the copy, as code.
        title: What it is, before its bytes.
        cure: What to do, behind them.
        evidence: How that is known.
        code: Lines that free it; None if its place is no code.
        storages: The copy's storages.
    """

    place: str
    title: str
    cure: str
    evidence: str
    code: str | None
    storages: list[HeldStorage]


def copies(e: Evidence) -> Iterator[Copy]:
    """Yield all copies that live at the end."""
    yield from _frozen_twice(e)
    yield from _without_adapters(e)
    yield from _with_data(e)
    yield from _uncalled(e)


def _uncalled(e: Evidence) -> Iterator[Copy]:
    """Yield attributes that alone hold a copy of the called model's weights."""
    model = e.model_code()
    own = {} if model is None else _weights_of(e, model)
    called, live = _called(e), _live_in(e, model) if own else frozenset()
    found: dict[str, list[HeldStorage]] = {}
    for held in e.held if live else ():
        if e.row_of(held) in live:
            continue  # the model itself: a method has another name for it
        path = held.holders[0].path
        rest = next((rest for rest in _rests(path) if own.get(rest) == held.form), None)
        place = "" if rest is None else path.removesuffix(f".{rest}")
        if "." in place and all(way.path.startswith(f"{place}.") for way in held.holders):
            found.setdefault(place, []).append(held)
    for place, matched in found.items():
        used = any(f"{place}.".startswith(f"{name}.") for name in called)
        if len(matched) >= ALIKE * len(own) and not used and not marks_intended_copy(place):
            yield Copy(
                place=place,
                title=f"`{place}` is a second copy of {model} that is not called",
                cure="keep it on the CPU, or delete it",
                evidence=f"It alone holds {len(matched)} tensors with the names and shapes of "
                f"{model}'s weights.",
                code=f'{place}.to("cpu")' if is_expression(place) else None,
                storages=matched,
            )


def _with_data(e: Evidence) -> Iterator[Copy]:
    """Yield copies of a called module that have its other tensors, too.

    A deep copy has them: the data that hangs on a module that is averaged.
    """
    chief, model = e.model(), e.model_code()
    if chief is None or model is None:
        return
    own = {way.path: held.form for held in e.held for way in held.holders}
    weights, called = _weights_of(e, model), _called(e)
    for place in (m["name"] for m in e.modules if m["class"] == chief["class"]):
        if place == model or place in called:
            continue
        matched: dict[str, HeldStorage] = {}
        for held in e.held_only_by(HolderKind.NAME, root=place):
            path = held.name_in(place).removeprefix(f"{place}.")
            if path not in weights and own.get(f"{model}.{path}") == held.form:
                matched[path] = held
        yield Copy(
            place=place,
            title=f"`{place}` is a copy of `{model}` with its data",
            cure="copy only the weights",
            evidence=f"{model} has tensors that are no weights, and {place}, which is not "
            f"called, has its own: {', '.join(sorted(matched))}.",
            code="\n".join(f"{place}.{path} = None" for path in sorted(matched)),
            storages=list(matched.values()),
        )


def _frozen_twice(e: Evidence) -> Iterator[Copy]:
    """Yield modules that hold the frozen weights of a trained module again.

    They are called without gradients only, and have weights of the same names and shapes.
    """
    with_grad = {call["module"] for call in e.calls if call["grad"] and call["module"]}
    without_grad = _called(e) - {around for name in with_grad for around in _with_outer(name)}
    for model, names in _trained(e).items() if without_grad else ():
        theirs = _weights_of(e, model)
        for place in without_grad - {model}:
            matched = _weights_of(e, place)
            frozen = {p for p, form in theirs.items() if p not in names and matched.get(p) == form}
            held = [h for h in e.held if h.holders[0].path.removeprefix(f"{place}.") in frozen]
            if len(matched.items() & theirs.items()) >= ALIKE * len(theirs):
                yield Copy(
                    place=place,
                    title=f"`{place}` has the frozen weights of `{model}` again",
                    cure="share them",
                    evidence=f"{len(frozen)} weights of {model} get no gradients, and {place}, "
                    "which is called without gradients, has weights of the same names and shapes. "
                    "If their values are equal, one set is enough.",
                    code=f"own = dict({model}.named_parameters())\n"
                    f"for name, weight in {place}.named_parameters():\n"
                    "    if name in own and not own[name].requires_grad:\n"
                    "        weight.data = own[name].data",
                    storages=[h for h in held if all(way.root == place for way in h.holders)],
                )


def _without_adapters(e: Evidence) -> Iterator[Copy]:
    """Yield reference models of a model that has adapters to switch off."""
    for place, trained in reference_models(e.session.facts):
        model = trained["name"]
        if trained.get("peft"):
            yield Copy(
                place=place,
                title=f"`{place}` is `{model}` without its adapters",
                cure="switch them off in its place (trl: `ref_model=None`)",
                evidence=f"{place} is called without gradients only, and has the class and the "
                f"size of the model that {model} adds adapters to. If it began with the same "
                "weights, it computes what that one does with its adapters off.",
                code=f"with {model}.disable_adapter():\n"
                f"    ...   # what {place} computes; a trainer of trl does so with ref_model=None"
                if is_expression(model)
                else None,
                storages=[
                    h for h in e.held if any(way.path.startswith(f"{place}.") for way in h.holders)
                ],
            )


def built_again(e: Evidence) -> tuple[str, str, Ints]:
    """Return weights of trained models that were built again.

    They are gone, and were made after the first step of an optimizer. With the names of the last
    copy and of its model; no rows if there is none.
    """
    ledger, a = e.card_ledger, e.card_ledger.allocations
    rows = np.flatnonzero((ledger.category == Category.WEIGHTS) & (a.freed < ledger.events))
    rows = rows[[e.trains_before(at) for at in a.allocated_at[rows].tolist()]]
    trained = {model: _weights_of(e, model) for model in (_trained(e) if len(rows) else ())}
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows.tolist():
        name, form = split_name(ledger.name(row) or "") or ("", "")
        for model, own in trained.items():
            rel = next((rest for rest in _rests(name) if own.get(rest) == form), None)
            if rel is not None:
                found.setdefault((name.removesuffix(f".{rel}"), model), []).append(row)
    whole = {
        of: matched for of, matched in found.items() if len(matched) >= ALIKE * len(trained[of[1]])
    }
    if not whole:
        return "", "", rows[:0]
    place, model = max(whole, key=lambda of: max(whole[of]))
    return (
        place,
        model,
        np.array(sorted({row for matched in whole.values() for row in matched}), np.int64),
    )


def _weights_of(e: Evidence, module: str) -> dict[str, str]:
    """Return the shape and type of a module's weights, by their path in it."""
    start = f"{module}."
    names = e.sorted_weights  # those of other modules cost no call each
    own = takewhile(lambda name: name.startswith(start), names[bisect_left(names, start) :])
    return {name.removeprefix(start): e.weight_forms[name].removesuffix(VIEW) for name in own}


def _live_in(e: Evidence, module: str | None) -> frozenset[int]:
    """Return the allocations at the end that were seen as tensors of a module."""
    seen, ledger = e.trace.storage_labels, e.card_ledger
    start = f"{module}."
    theirs = [at for at in np.unique(seen.name) if e.session.names[at].startswith(start)]
    labels = np.flatnonzero(np.isin(seen.name, theirs))
    rows = rows_at(ledger.allocations, seen.addr[labels], seen.position[labels], ledger.events)
    return frozenset(rows.tolist()).intersection(ledger.live(ledger.events).tolist())


def _trained(e: Evidence) -> dict[str, set[str]]:
    """Return the weights that had gradients, by their called module."""
    seen = e.trace.storage_labels
    names = np.unique(seen.name[seen.category == Category.GRADIENTS]).tolist()
    parts = [split_name(e.session.names[index]) for index in names]
    found: dict[str, set[str]] = {}
    called = _called(e)
    for part in filter(None, parts):
        path = part[0].removesuffix(".grad")
        for module in called.intersection(_with_outer(path)):
            if path.startswith(f"{module}."):
                found.setdefault(module, set()).add(path.removeprefix(f"{module}."))
    return found


def _called(e: Evidence) -> set[str]:
    return {m["name"] for m in e.modules if m.get("called")}


def _with_outer(path: str) -> Iterator[str]:
    """Yield a path and its outer parts: `net`, `net.blocks`, `net.blocks[0]`."""
    yield from (path[: cut.start()] for cut in _SEPARATOR.finditer(path))
    yield path


def _rests(path: str) -> Iterator[str]:
    """Yield what follows each dot of a path, the longest first."""
    parts = path.split(".")
    yield from (".".join(parts[at:]) for at in range(1, len(parts)))
