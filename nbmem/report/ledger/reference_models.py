"""Find models like the trained one that get no gradients.

DPO and GRPO compare the trained model with one that stays as it was. That is known by what the
program did: both are models of one class and size of transformers, both are called in the
recording, and the reference only without gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.session.tensor_parts import REFERENCE

if TYPE_CHECKING:
    Facts = Mapping[str, Any]


class ReferenceModel(NamedTuple):
    """A reference model, and the trained model that is like it.

    Attributes:
        name: The reference's name in the program.
        trained: The facts of the trained model.
    """

    name: str
    trained: Facts


def reference_models(facts: Facts) -> Iterator[ReferenceModel]:
    """Yield the reference models of a recording."""
    calls = [call for call in facts.get("calls", ()) if call["module"]]
    trained = {call["module"] for call in calls if call["grad"]}
    others = {call["module"] for call in calls} - trained
    models = [(model, kind) for model in facts.get("modules", ()) if (kind := _kind(model))]
    for model, kind in models:
        like = [one for one, its in models if its == kind and one["name"] in trained]
        if model["name"] in others and like:
            yield ReferenceModel(model["name"], like[0])


def reference_parts(facts: Facts, names: Sequence[str]) -> dict[int, str]:
    """Return the part of each name of a reference model, by its index."""
    places = tuple(f"{one.name}." for one in reference_models(facts))
    return {at: REFERENCE for at, name in enumerate(names) if places and name.startswith(places)}


def _kind(model: Facts) -> tuple[Any, ...]:
    """Return the class and sizes of a model of transformers, or ()."""
    inside, head = model.get("libraries"), model.get("head")
    if not (type(inside) is list and inside and type(inside[0]) is dict and type(head) is dict):
        return ()
    if inside[0].get("library") != "transformers":
        return ()
    layers = [block["count"] for block in model["blocks"]]
    return inside[0].get("class"), head.get("words"), head.get("width"), *layers
