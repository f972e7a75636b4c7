"""Find models whose gradient checkpointing eval mode switches off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.core.session.session import Session


def is_switched_off(session: Session, model: Mapping[str, Any]) -> bool:
    """Return whether eval mode kept a model from checkpointing its blocks.

    Its modules have `gradient_checkpointing` and are all in eval mode, and so was the model in each
    call that recorded a graph. Where only a part of it is in eval mode, its calls do not tell.

    Args:
        session: What was recorded.
        model: The facts of the module.
    """
    found = model.get("checkpointed")
    if not found or found["training"] or found["evaluating"] is None:
        return False
    calls = [
        call
        for call in session.facts.get("calls") or []
        if call["module"] == model["name"] and call["grad"]
    ]
    if found["evaluating"]:
        return bool(calls) and bool(model["training"])
    return bool(calls) and not any(call["training"] for call in calls)
