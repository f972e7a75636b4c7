"""Recognize names that mark a copy as intended."""

from __future__ import annotations

ON_PURPOSE = (
    "anchor", "average", "avg", "backup", "base", "best", "client", "ema", "frozen", "global",
    "init", "momentum", "orig", "prior", "pretrained", "reference", "ref_", "server", "shadow",
    "slow", "snapshot", "start", "swa", "target", "teacher",
)  # fmt: skip
"""Parts of a name that show that a copy is intended."""


def marks_intended_copy(name: str) -> bool:
    """Return whether a name marks a copy as intended (average, teacher)."""
    return any(part in name.lower() for part in ON_PURPOSE)
