"""Uncaught errors as they would be shown on a real card."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.virtual.frames import without_own
from nbmem.virtual.patches.patcher import Patch

if TYPE_CHECKING:
    from types import TracebackType


def excepthook_patch() -> Patch:
    """What Python prints for an uncaught exception; IPython honours `__tracebackhide__` instead."""
    true_hook = sys.excepthook

    def excepthook(kind: Any, error: BaseException, traceback: TracebackType | None) -> None:
        shown = without_own(traceback)
        true_hook(kind, error.with_traceback(shown), shown)

    return Patch(sys, "excepthook", excepthook)
