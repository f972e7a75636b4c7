"""What a name of the user's tells of its purpose."""

from __future__ import annotations

ON_PURPOSE = (
    "anchor", "average", "avg", "backup", "base", "best", "client", "ema", "frozen", "global",
    "init", "momentum", "orig", "prior", "pretrained", "reference", "ref_", "server", "shadow",
    "slow", "snapshot", "start", "swa", "target", "teacher",
)  # fmt: skip
"""Parts of a name that say that a copy is meant to be there."""


def on_purpose(name: str) -> bool:
    """Whether a name says that a copy is meant to be there (an average, a teacher)."""
    return any(part in name.lower() for part in ON_PURPOSE)
