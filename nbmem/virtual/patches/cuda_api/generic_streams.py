"""torch.Stream and torch.Event, which serve every kind of device.

For a card they make the card's streams and events.
"""

from __future__ import annotations

from typing import Any

import torch

from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.patches.tensor_api.transfers import card_device, is_card


class _Kind(type):
    """Metaclass of torch.Stream, torch.Event and the cards' own classes.

    The cards' classes are subclasses of the two, as in torch.

    Attributes:
        true: Torch's own class.
        make: What makes one of a card's; of a class of the cards' None.
    """

    true: Any
    make: Any = None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an object of the cards for a card, else one of torch's.

        No device means a card.
        """
        if cls.make is None:
            return super().__call__(*args, **kwargs)
        first, *rest = args or (kwargs.pop("device", None),)
        where = card_device("cuda" if first is None else first)
        made = cls.make if is_card(where) else cls.true
        return made(where, *rest, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (
            cls.make is not None and isinstance(instance, cls.true)
        )


def make_card_class(name: str, base: type, machine: Any) -> Any:
    """Return the cards' class of streams or events.

    It is a subclass of the class that stands for torch's.

    Args:
        name: "Stream" or "Event".
        base: What the class does.
        machine: The cards.
    """
    true = getattr(torch, name, None)
    if true is None:  # an old release
        return type(base.__name__, (base,), {"machine": machine})
    kind = _Kind(name, (), {"__module__": "torch", "true": true, "make": None})
    card = _Kind(base.__name__, (base, kind), {"machine": machine})
    card.make = None
    kind.make = card if name == "Stream" else _event_maker(card)
    return card


def _event_maker(event: Any) -> Any:
    def make_event(_device: Any, *, enable_timing: bool = False, **options: Any) -> Any:
        return event(enable_timing, **options)

    return make_event


def generic_patches(*classes: Any) -> list[Patch]:
    """Return patches of torch.Stream and torch.Event."""
    found = [base for kind in classes for base in kind.__mro__ if isinstance(base, _Kind)]
    return patches_of(torch, {base.__name__: base for base in found if base.make is not None})
