"""Options that name a language model and what is done with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.engine.choice import NO_CONTEXT, choose
from nbmem.estimates.language_models.settings import (
    DTYPES,
    METHODS,
    OPTIMIZERS,
    Settings,
    settings_of,
)
from nbmem.estimates.programs import assignments, programs

if TYPE_CHECKING:
    import argparse

    from nbmem.estimates.programs.programs import Program

CONTEXT = ("context", "seq", "seq_len", "tokens", "length")
"""Words for the length of sequences, where a program has no variable of that name."""


def add_method(parser: argparse.ArgumentParser) -> None:
    """Add the options for what is done with a model."""
    parser.add_argument(
        "--method", metavar="NAME", help=f"{', '.join(METHODS)} (lora); inference is generate"
    )
    parser.add_argument(
        "--dtype", metavar="NAME", help=f"type of the weights: {', '.join(DTYPES)} (auto)"
    )
    parser.add_argument("--optimizer", metavar="NAME", help=f"{', '.join(OPTIMIZERS)} (adamw)")
    parser.add_argument("--bits", type=int, metavar="N", help="4: weights in 4 bits to generate")
    parser.add_argument("--lora-rank", type=int, metavar="N", help="rank of the adapters (16)")
    parser.add_argument(
        "--lora-targets",
        metavar="NAMES",
        help="layers to adapt: q_proj,v_proj (all-linear)",
    )
    parser.add_argument(
        "--no-checkpointing", action="store_true", help="keep all activations for backward"
    )
    parser.add_argument(
        "--no-autocast",
        action="store_true",
        help="no autocast, which Trainer has with bf16=True",
    )


def settings_from(
    options: argparse.Namespace, *, seq: int | None = None, batch: int | None = None
) -> Settings:
    """Convert the options to settings.

    Raises:
        UsageError: A value is not one of those that there are.
    """
    targets = options.lora_targets
    return settings_of(
        options.model,
        method=options.method,
        seq=seq,
        batch=batch,
        dtype=options.dtype,
        optimizer=options.optimizer,
        bits=options.bits,
        rank=options.lora_rank,
        targets=None if targets is None else tuple(t.strip() for t in targets.split(",")),
        checkpointing=False if options.no_checkpointing else None,
        autocast=False if options.no_autocast else None,
    )


def batches_of(text: str | None) -> tuple[int, ...] | None:
    """Parse batches separated by commas; None for the usual ones.

    Raises:
        UsageError: They are no whole numbers from 1 on.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise UsageError(f"--batch {text} is no list of batches; write 1,2,4,8.")
    return tuple(map(int, words))


def check_context(variable: str, options: argparse.Namespace) -> None:
    """Raise unless the variable is the context, which is searched as a whole.

    Raises:
        UsageError: It is another one of a model, or options were given that the search lacks.
    """
    if variable not in CONTEXT:
        raise UsageError(
            f"Of a --model the context is searched, and not {variable}: write context. For other "
            "variables, name a script or a cell."
        )
    choose(options.engine, NO_CONTEXT)
    if options.between is not None or options.step != 1 or options.ranks is not None:
        raise UsageError(
            "All lengths of the context are searched, for one card: leave out --between, --step "
            "and --ranks."
        )


def bind_or_context(
    program: Program, variable: str, namespace: Mapping[str, Any] | None = None
) -> Program:
    """Return a program with its variable; without one if its context is meant.

    Raises:
        UsageError: It has the variable, and it cannot be varied; or another one is not there.
    """
    try:
        return programs.bind_variable(program, variable, namespace)
    except UsageError:
        named = variable in assignments.names_of(program.source)
        if variable not in CONTEXT or named or f"--{variable}" in program.source:
            raise
        return program
