"""What modules and optimizers are called: as code of the user's own, and what their names tell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ON_PURPOSE = (
    "anchor", "average", "avg", "backup", "base", "best", "client", "ema", "frozen", "global",
    "init", "momentum", "orig", "prior", "pretrained", "reference", "ref_", "server", "shadow",
    "slow", "snapshot", "start", "swa", "target", "teacher",
)  # fmt: skip
"""Parts of a name that say that a copy is meant to be there."""
_EXPRESSION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[\d+\]|\['[\w. -]*'\])*")


def typed(thing: Mapping[str, Any] | None) -> str | None:
    """A module or an optimizer as it may stand in code; None if only its class is known.

    Names are the user's, and may be anything.
    """
    if thing is None or thing["name"] == thing["class"]:
        return None
    name = str(thing["name"])
    return name if expression(name) else None


def expression(text: str) -> bool:
    """Whether a text may stand in code as it is: a name, with attributes, numbers, plain keys."""
    return _EXPRESSION.fullmatch(text) is not None


def on_purpose(name: str) -> bool:
    """Whether a name says that a copy is meant to be there (an average, a teacher)."""
    return any(part in name.lower() for part in ON_PURPOSE)
