"""Turn a session into a report: ledger, analysis, tips and their model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.report.model import (
        CardFit,
        Finding,
        Holding,
        LargestPart,
        Moment,
        Peak,
        PhaseRow,
        Report,
        WouldRunOn,
    )

__all__ = [
    "CardFit",
    "Finding",
    "Holding",
    "LargestPart",
    "Moment",
    "Peak",
    "PhaseRow",
    "Report",
    "WouldRunOn",
]


def __getattr__(name: str) -> Any:
    """Import a public type when it is named: the package itself stays light."""
    if name in __all__:
        return getattr(import_module("nbmem.report.model"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
