"""Describe another framework: its name, and how to read its memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkReading:
    """A framework's report of its memory, before it is checked.

    `FrameworkQueries` checks it.

    Attributes:
        held: Bytes of the card that it holds from the driver.
        used: Bytes of these that are in use; None if it does not report them.
        managed: Bytes of managed memory beside them (cudaMallocManaged), on the card or not.
    """

    held: Any
    used: Any = None
    managed: Any = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework that allocates GPU memory beside torch.

    Attributes:
        name: Its key in files and in JSON, one of core.session.frameworks.LABELS.
        modules: It is queried only if all of these are already imported: nbmem imports none.
        read: Reads its memory of one GPU, by CUDA ordinal; None if it has not used that GPU. It
            must create no context and start no framework: torch has a context on that GPU.
        give_back: Frees unused memory that it holds of a GPU, at the user's explicit request; None
            if it has no such call.
    """

    name: str
    modules: tuple[str, ...]
    read: Callable[[int], FrameworkReading | None]
    give_back: Callable[[int], None] | None = None

    @property
    def is_loaded(self) -> bool:
        """True if the user has imported the framework completely.

        False while it is being imported.
        """
        return all(is_whole(sys.modules.get(name)) for name in self.modules)


def is_whole(module: ModuleType | None) -> bool:
    """Return True if a module has been imported completely."""
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)
