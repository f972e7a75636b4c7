"""Options of fit, plan and layers for the command line and notebooks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.core.units import parse_bytes
from nbmem.engine.choice import add_engine
from nbmem.estimates.programs import programs
from nbmem.report.estimate_results import MARGIN

if TYPE_CHECKING:
    import argparse

    from nbmem.estimates.programs.programs import Program

BATCHES = ("batch", "batch_size", "bs", "BATCH", "BATCH_SIZE", "B", "per_device_train_batch_size")
"""Usual names of the batch size: one of these is used if none is given."""
LENGTHS = (
    "block_size", "context_length", "max_seq_length", "max_seq_len", "seq_length", "seq_len",
    "sequence_length", "max_length", "seq",
)  # fmt: skip
"""Usual names of the tokens of a sequence."""


def add_card(parser: argparse.ArgumentParser) -> None:
    """Add the options for the card and its margin."""
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="on which card (`nbmem gpus` lists them); the default is the one in use, else an "
        "H100 80GB; plan and estimate take `all`",
    )
    parser.add_argument(
        "--margin",
        metavar="PERCENT",
        default=f"{MARGIN:.0%}".rstrip("%"),
        help="percent of the card kept free for the error of the estimate (%(default)s)",
    )


def _numbers(text: str) -> tuple[int, ...]:
    """Parse integers separated by commas.

    Raises:
        UsageError: There are others.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--ranks {text}: say how many, as in 64, or 8,16,32.") from None


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options that write an answer to a file."""
    parser.add_argument("--json", metavar="FILE", help="write the answer as JSON (a stable form)")
    parser.add_argument("--html", metavar="FILE", help="write the answer as a page of its own")


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options of a search: card, engine, ranks, range, files."""
    add_card(parser)
    add_engine(parser)
    parser.add_argument(
        "--ranks",
        metavar="N",
        type=int,
        help="run it as torchrun would on N such cards: as rank 0, which has the largest shards",
    )
    parser.add_argument(
        "--between", nargs=2, type=int, metavar=("A", "B"), help="search between these values"
    )
    parser.add_argument("--step", type=int, default=1, metavar="N", help="in steps of N (1)")
    add_files(parser)


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the options of a plan: target, batch, remedies, card, ranks, files."""
    parser.add_argument(
        "--target", metavar="BYTES", help="bytes of the process to stay below, such as 12GiB"
    )
    parser.add_argument(
        "--batch", metavar="NAME", help="the variable that is the batch; the default is one of "
        + ", ".join(BATCHES[:3])
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true", dest="every", help="run every remedy, and pairs of the best, "
        "also those that cannot change the answer"
    )  # fmt: skip
    add_card(parser)
    add_engine(parser)
    parser.add_argument(
        "--ranks",
        metavar="N,N",
        type=_numbers,
        help="on N such cards, as torchrun would run it; of several (8,16,32), the fewest that "
        "train it: a program for one card is run under DDP, ZeRO, FSDP2, HSDP and TP",
    )
    add_files(parser)


def add_layers(parser: argparse.ArgumentParser) -> None:
    """Add the options for a model's input and the order of its layers."""
    parser.add_argument(
        "--input", metavar="SHAPE", help="shape of an input to make up: 32,3,224,224"
    )
    parser.add_argument("--batch", type=int, metavar="N", help="put in front of --input's shape")
    parser.add_argument(
        "--sort", metavar="COLUMN", default="name", help="largest first: saved, weights, output ..."
    )


def search(options: argparse.Namespace) -> dict[str, Any]:
    """Convert the options of a search to arguments of `nbmem.fit`."""
    return {
        "gpu": options.gpu,
        "ranks": options.ranks,
        "margin": margin(options),
        "between": None if options.between is None else tuple(options.between),
        "step": options.step,
        "engine": options.engine,
    }


def planned(options: argparse.Namespace) -> dict[str, Any]:
    """Convert the options of a plan to arguments of `nbmem.plan`."""
    target = None if options.target is None else parse_bytes(options.target)
    return {
        "gpu": options.gpu,
        "ranks": options.ranks[0] if options.ranks else None,
        "margin": margin(options),
        "target": target,
        "every": options.every,
        "engine": options.engine,
    }


def worlds(options: argparse.Namespace) -> tuple[int, ...]:
    """Return the world sizes to choose from; empty for fewer than two.

    Raises:
        UsageError: Options for remedies were given, too.
    """
    ranks: tuple[int, ...] = options.ranks or ()
    if len(ranks) < 2:
        return ()
    if options.every or options.target is not None or options.batch is not None:
        raise UsageError(
            "--all, --target and --batch are about remedies, and several --ranks about the number "
            "of cards: ask for one number of ranks, or leave them out."
        )
    return ranks


def margin(options: argparse.Namespace) -> float:
    """Parse the part of the card that is kept free, as a fraction.

    Raises:
        UsageError: It is no percentage below 100.
    """
    try:
        part = float(str(options.margin).rstrip("%")) / 100
    except ValueError:
        part = -1.0
    if not 0 <= part < 1:
        raise UsageError(f"--margin {options.margin} is not a percentage; write 2 for 2%.")
    return part


def with_batch(
    program: Program, named: str | None, namespace: Mapping[str, Any] | None = None
) -> Program:
    """Return the program with its batch as the variable.

    The batch is the name that was given, else the one usual name that is found. With none or
    several of them, the program is returned unchanged.

    Raises:
        UsageError: The named one cannot be varied.
    """
    if named is not None:
        return programs.bind_variable(program, named, namespace)
    found = []
    for name in BATCHES:
        with contextlib.suppress(UsageError):
            found.append(programs.bind_variable(program, name, namespace))
    return found[0] if len(found) == 1 else program


def with_length(program: Program, seq: int, namespace: Mapping[str, Any] | None) -> Program:
    """Return the program with the length of its sequences as the variable.

    That is a variable of a usual name with this value; without one, the program is returned
    unchanged.
    """
    for name in LENGTHS:
        with contextlib.suppress(UsageError):
            found = programs.bind_variable(program, name, namespace)
            if found.binding is not None and found.binding.value == seq:
                return found
    return program


def shape(text: str | None, batch: int | None) -> tuple[int, ...] | None:
    """Parse a shape such as `32,3,224,224`; prepend the batch if given.

    Raises:
        UsageError: It is no list of whole numbers.
    """
    if text is None:
        return None
    words = [word for word in text.replace("x", ",").split(",") if word.strip()]
    if not words or not all(word.strip().isdecimal() for word in words):
        raise UsageError(f"--input {text} is not a shape; write 32,3,224,224.")
    sizes = tuple(int(word) for word in words)
    return sizes if batch is None else (batch, *sizes)
