"""torch.Stream and torch.Event, which name no kind of device: a card's where it is meant."""

from __future__ import annotations

from typing import Any

import torch

from nbmem.virtual.install.moving import card_device, is_card
from nbmem.virtual.install.patches import Patch, wanted


def _class(true: Any, ours: Any, make: Any) -> Any:
    """A class that makes ours for a card, which is what no device means; else torch's own."""

    class Generic(type):
        def __call__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
            where = card_device("cuda" if device is None else device)
            made = make if is_card(where) else true
            return made(where, *args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (true, ours))

    return Generic(true.__name__, (), {"__module__": "torch"})


def generic_patches(stream: Any, event: Any) -> list[Patch]:
    """The two classes, of the machine's own streams and events."""

    def make_event(_device: Any, *, enable_timing: bool = False, **options: Any) -> Any:
        return event(enable_timing, **options)

    names = {
        "Stream": (stream, stream),
        "Event": (event, make_event),
    }
    made = {n: _class(getattr(torch, n), *pair) for n, pair in names.items() if hasattr(torch, n)}
    return wanted(torch, made)
