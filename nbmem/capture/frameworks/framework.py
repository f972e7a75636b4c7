"""What an owner is: the name of a library, and how to ask it what it holds of a card."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReading:
    """What a library answered; it is not believed before `asking.py` has looked at it.

    Attributes:
        held: Bytes of the card that it holds from the driver.
        used: Those of them that are in use; None where it does not say.
        managed: Bytes of managed memory beside them (cudaMallocManaged), on the card or not.
    """

    held: Any
    used: Any = None
    managed: Any = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A library that takes memory of a card beside torch.

    Attributes:
        name: Its key in files and in JSON, one of core.owners.LABELS.
        modules: It is asked only if all of these are imported already: nbmem imports none.
        read: Asks it for one card, by CUDA ordinal; None where it has not touched that card. It
            must make no context and start no library: torch has a context on that card.
        give_back: Gives back to the driver what it holds of a card and does not use, which the
            user asked for by name; None where it has no such call.
    """

    name: str
    modules: tuple[str, ...]
    read: Callable[[int], OwnerReading | None]
    give_back: Callable[[int], None] | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether the user has imported it, and is not importing it right now."""
        return all(is_whole(sys.modules.get(name)) for name in self.modules)


def is_whole(module: ModuleType | None) -> bool:
    """Whether a module was imported to its end."""
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)
