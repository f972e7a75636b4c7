"""`free frameworks`: free the unused pools of other frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.capture.frameworks import OWNERS
from nbmem.capture.frameworks.readings import FrameworkQueries
from nbmem.capture.torch_cuda import device_count, is_used

if TYPE_CHECKING:
    from nbmem.core.session.frameworks import Share


def shares(notes: list[str]) -> list[Share]:
    """Read what each framework holds of each card that torch uses.

    `notes` gets the reason if one is left out.
    """
    owners = FrameworkQueries(notes.append)
    return [share for device in _devices() for share in owners.read_in_time(device)]


def unused(found: Sequence[Share]) -> int:
    """Sum the bytes of some shares that can be given back."""
    names = {owner.name for owner in OWNERS if owner.give_back is not None}
    return sum(share.cached for share in found if share.name in names)


def give_back(found: Sequence[Share]) -> None:
    """Release unused memory of some frameworks on every card torch uses."""
    holding = {share.name for share in found}
    for owner in OWNERS:
        if owner.give_back is not None and owner.is_loaded and owner.name in holding:
            for device in _devices():
                owner.give_back(device)


def _devices() -> list[int]:
    """Return the cards on which torch has a context; none is made."""
    return [device for device in range(device_count()) if is_used(device)]
