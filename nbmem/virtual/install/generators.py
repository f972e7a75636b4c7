"""`torch.Generator("cuda")`: a generator of the CPU's that says it is the card's."""

from __future__ import annotations

from typing import Any

import torch

from nbmem.virtual.install.moving import card_device, is_card
from nbmem.virtual.install.patches import Patch

_Generator: Any = torch.Generator
_Meta: Any = type(_Generator)


class _Kind(_Meta):
    """Torch's own generators are instances, too."""

    def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805 - a metaclass
        return isinstance(instance, _Generator)


class VirtualGenerator(_Generator, metaclass=_Kind):
    """What torch.Generator is while a virtual card is active."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """A generator of the CPU, or one that only has a state and a seed."""
        device = card_device(device)
        if not is_card(device):
            return _Generator(device)
        made = super().__new__(cls, "cpu")
        made._card = device
        return made

    @property
    def device(self) -> torch.device:
        """The card."""
        card: torch.device = self._card
        return card


def generator_patches() -> list[Patch]:
    """The class, by its public name."""
    return [Patch(torch, "Generator", VirtualGenerator)]
