"""Choose between the engines `torch` and `rules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.engine import AUTO, ENGINES, RULES, TORCH, process

if TYPE_CHECKING:
    import argparse

NO_RANKS = "it has no worlds of ranks"
NO_TABLE = "it is on one card, and is not asked about all"
NO_MODELS = "it runs programs, and no language models by their names"
NO_CONTEXT = "it changes no length of a program's sequences"
"""Why the engine torch cannot answer `--ranks`, `--gpu all`, `--model` and `fit context`."""


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Declare the option --engine."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=AUTO,
        help="what stands in for a card: torch (torch's own CUDA build without a driver), rules "
        "(any build of torch), or auto: torch where it was used before, else rules",
    )


def choose(engine: str, cannot: str | None = None, *, many: bool = False) -> str:
    """Return the engine to use for an option's value.

    `auto` is torch where that runs and is compiled already, else rules. So the first use of torch
    is asked for by name, and a compiler never starts unasked. A search of many runs is left to
    rules: it replays requests that nbmem's own allocator recorded, where torch must run again.

    Args:
        engine: `auto`, `rules` or `torch`.
        cannot: What torch cannot do of the question, as a clause; None if it can do all of it.
        many: Whether the question takes many runs.

    Raises:
        UsageError: There is no such engine, or it cannot run here.
    """
    from nbmem.engine.availability import is_ready, require  # with the table of cards

    if engine not in ENGINES:
        raise UsageError(f"There is no engine {engine!r}. Choose one of {', '.join(ENGINES)}.")
    if engine == AUTO:
        return TORCH if cannot is None and not many and is_ready() else RULES
    if engine == TORCH and cannot is not None:
        raise UsageError(f"Cannot use the engine torch: {cannot}. Use --engine rules.")
    if engine == TORCH and not process.active():
        require()
    return engine
