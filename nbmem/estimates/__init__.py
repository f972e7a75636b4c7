"""Estimate memory on a virtual card: need, largest fit and remedies.

The package is not called `estimate` because `nbmem.estimate` is a function. Its functions are
imported at their first use: the process of estimates is started before, so that both import at the
same time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.estimates.answers import (
        CardsAnswer,
        FitAnswer,
        LayersAnswer,
        PlanAnswer,
        WorldsAnswer,
    )
    from nbmem.estimates.api import (
        cards,
        estimate,
        fit,
        layers,
        layers_of,
        plan,
        try_finding,
        worlds,
    )

__all__ = [
    "CardsAnswer",
    "FitAnswer",
    "LayersAnswer",
    "PlanAnswer",
    "WorldsAnswer",
    "cards",
    "estimate",
    "fit",
    "layers",
    "layers_of",
    "plan",
    "try_finding",
    "worlds",
]


def __getattr__(name: str) -> Any:
    """Import a function, or the class of an answer, on first use."""
    if name in __all__:
        home = "answers" if name.endswith("Answer") else "api"
        return getattr(import_module(f"nbmem.estimates.{home}"), name)
    raise AttributeError(f"module 'nbmem.estimates' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return sorted({*globals(), *__all__})
