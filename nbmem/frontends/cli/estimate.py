"""`nbmem estimate --model NAME`: estimate a language model without code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.frontends.cli.estimates import finish, progress
from nbmem.frontends.cli.subcommand import EXIT_OK, Subcommand, targets, write_out

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from nbmem.estimates import options
    from nbmem.estimates.language_models.options import add_method

    parser.add_argument(
        "--model",
        metavar="NAME",
        required=True,
        help="a published name (llama-3.1-8b), a config.json, or a class of transformers",
    )
    add_method(parser)
    parser.add_argument("--seq", type=int, metavar="N", help="tokens of a sequence (2048)")
    parser.add_argument("--batch", type=int, metavar="N", help="sequences at a time (1)")
    options.add_card(parser)
    parser.add_argument("--program", action="store_true", help="show the program, too, to paste")
    options.add_files(parser)


def run(options: argparse.Namespace) -> int:
    """Run the model's program on a virtual card, and print what it takes."""
    from nbmem.estimates.language_models import api
    from nbmem.estimates.language_models.options import settings_from
    from nbmem.estimates.options import margin

    files = targets(options)
    settings = settings_from(options, seq=options.seq, batch=options.batch)
    with progress("estimate") as tell:
        answer = api.model_answer(settings, options.gpu, margin=margin(options), tell=tell)
    finish(answer, files)
    if options.program:
        write_out(f"\nThe program that was run:\n\n{answer.program}")
    return EXIT_OK


COMMAND = Subcommand(
    "estimate", "what a language model takes to be trained or run, before there is code",
    configure, run,
)  # fmt: skip
