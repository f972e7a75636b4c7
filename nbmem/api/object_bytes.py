"""Count what one tensor, module or optimizer holds on the cards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nbmem.capture.interpreter.busy_threads import threads_using_tensors
from nbmem.capture.interpreter.object_members import attributes_of, entries_of
from nbmem.capture.tensors.modules import is_module, is_optimizer, is_tensor
from nbmem.capture.tensors.optimizers import state_of_optimizer
from nbmem.capture.tensors.tensors import (
    gradient_of,
    gradients_of_module,
    observe_parts,
    storages_of_module,
    without_torch_function,
)
from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from nbmem.capture.tensors.tensors import ObservedStorage

_MEMBERS = ("_modules", "_parameters", "_buffers")
"""Dictionaries of a module in which its parts are."""


def bytes_on_cards(obj: object, *, by_category: bool = True) -> str | None:
    """Write what an object holds on the cards; None for nothing.

    For instance `64.0 MiB on cuda:0: weights 32.0 MiB, gradients 32.0 MiB`. None of the user's code
    runs. Nothing is read while another thread may use tensors.

    Args:
        obj: Any object.
        by_category: Whether the categories follow, where there are several.
    """
    if not (is_tensor(obj) or is_module(obj) or is_optimizer(obj)):
        return None
    if threads_using_tensors():
        return None
    with without_torch_function():
        storages = _each_once(_storages(obj))
    cards = sorted({one.device for one in storages})
    parts = [
        _of_card(card, [one for one in storages if one.device == card], by_category=by_category)
        for card in cards
    ]
    return "; ".join(parts) or None


def member_at(names: Mapping[str, Any], path: str) -> Any:
    """Return what a path leads to; None where that would run the user's code."""
    first, *rest = path.split(".")
    obj = names.get(first)
    for name in rest:
        own = attributes_of(obj) or {}
        inside = [own, *(own.get(part) for part in _MEMBERS)]
        found = [dict(entries_of(one)) for one in inside if issubclass(type(one), dict)]
        obj = next((one[name] for one in found if name in one), None)
    return obj


def _storages(obj: Any) -> Iterator[ObservedStorage]:
    """Yield what an object itself keeps alive."""
    if is_module(obj):
        yield from storages_of_module(obj)
        yield from gradients_of_module(obj)
    elif is_optimizer(obj):
        yield from state_of_optimizer(obj)
    else:
        yield from observe_parts(obj, Category.USER_TENSORS, "")
        gradient = gradient_of(obj)
        if gradient is not None:
            yield from observe_parts(gradient, Category.GRADIENTS, "")


def _each_once(found: Iterable[ObservedStorage]) -> list[ObservedStorage]:
    """Return each storage on a card once.

    Those elsewhere have negative numbers.
    """
    known = {(one.device, one.addr): one for one in reversed(list(found)) if one.device >= 0}
    return list(reversed(known.values()))


def _of_card(card: int, storages: list[ObservedStorage], *, by_category: bool) -> str:
    sums: dict[Category, int] = {}
    for one in storages:
        sums[one.category] = sums.get(one.category, 0) + one.size
    text = f"{format_bytes(sum(sums.values()))} on cuda:{card}"
    if by_category and len(sums) > 1:
        own = {Category.USER_TENSORS: "itself"}
        parts = (f"{own.get(c, c.label)} {format_bytes(count)}" for c, count in sums.items())
        text += f": {', '.join(parts)}"
    return text
