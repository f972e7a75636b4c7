"""Put the oracle in the virtual card's place at Python's start.

A folder of its own in PYTHONPATH, for kernels, `nbmem run` and whatever else the tests start.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

PLACE = "nbmem.virtual"


class Finder:
    """Finds nbmem.virtual as always, and changes it once it is executed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if name != PLACE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            from tests.oracle.card import put_in

            execute(module)
            put_in(module)

        vars(spec.loader)["exec_module"] = executed
        return spec


sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
