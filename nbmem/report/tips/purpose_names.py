"""Recognize names that mark a copy as intended."""

from __future__ import annotations

ON_PURPOSE = (
    "accum", "anchor", "average", "avg", "backup", "base", "best", "client", "delta", "ema",
    "fisher", "frozen", "global", "grad", "init", "mask", "momentum", "noise", "orig", "polyak",
    "prev", "prior", "pretrained", "reference", "ref_", "running", "server", "shadow", "slow",
    "smooth", "snapshot", "start", "swa", "target", "teacher", "velocity",
)  # fmt: skip
"""Parts of a name that show that a copy is intended."""


def marks_intended_copy(name: str) -> bool:
    """Return whether a name marks a copy as intended (average, teacher)."""
    return any(part in name.lower() for part in ON_PURPOSE)
