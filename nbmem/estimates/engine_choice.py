"""Choose the engine of an estimate, and name it in the answer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from nbmem.engine import RULES
from nbmem.engine.choice import NO_RANKS, choose
from nbmem.report.estimate_results import Layers

if TYPE_CHECKING:
    from nbmem.virtual.virtual_worlds import VirtualWorld

BY_TORCH = "The engine torch made these figures: torch's own CUDA code, without a card."


def engine_of(wanted: str, world: VirtualWorld | None = None, *, many: bool = False) -> str:
    """Return the engine to use.

    Args:
        wanted: `auto`, `rules` or `torch`.
        world: The program's world; None for one process.
        many: Whether the question takes many runs.

    Raises:
        UsageError: There is no such engine, or it cannot answer.
    """
    return choose(wanted, None if world is None else NO_RANKS, many=many)


def named(answer: Any, engine: str) -> Any:
    """Return an answer that names its engine, if it is not the usual one."""
    if engine == RULES:
        return answer
    sentences = (*answer.sentences, BY_TORCH)
    if isinstance(answer, Layers):
        return dataclasses.replace(answer, engine=engine, sentences=sentences)
    card = dataclasses.replace(answer.card, engine=engine)
    return dataclasses.replace(answer, card=card, sentences=sentences)
