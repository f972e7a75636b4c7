"""The Python interface: trace, open, top, free, ranks, devices."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace

__all__ = ["Trace"]


def __getattr__(name: str) -> Any:
    """Import a public type when it is named: the package itself stays light."""
    if name in __all__:
        return getattr(import_module("nbmem.api.tracing"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
