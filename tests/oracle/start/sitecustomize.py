"""Replace the virtual card by the oracle when Python starts.

This folder is in the PYTHONPATH of each process that the tests start: kernels and `nbmem run`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

PATCHED_MODULE = "nbmem.virtual"


class Finder:
    """Finds nbmem.virtual on the path and patches it after its execution."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if name != PATCHED_MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: Any) -> None:
            from tests.oracle.card import put_in

            execute(module)
            put_in(module)

        vars(spec.loader)["exec_module"] = execute_and_patch
        return spec


sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
