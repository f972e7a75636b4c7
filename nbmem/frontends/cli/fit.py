"""`nbmem fit SCRIPT --vary NAME`: find the largest value that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.frontends.cli.estimates import finish, progress
from nbmem.frontends.cli.subcommand import Subcommand, targets

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from nbmem.estimates import options

    parser.add_argument("script", metavar="SCRIPT", help="the Python file to run, many times")
    parser.add_argument(
        "--vary",
        metavar="NAME",
        required=True,
        help="the variable: `NAME = 32` in the script, or its argument: `-- --NAME 32`",
    )
    options.add_card(parser)
    options.add_world(parser)
    options.add_range(parser)
    options.add_files(parser)


def run(options: argparse.Namespace) -> int:
    """Search for the largest value that fits, and print the answer."""
    from nbmem import estimates
    from nbmem.estimates.options import search
    from nbmem.estimates.programs import programs

    files = targets(options)
    arguments = tuple(options.script_arguments)
    program = programs.script(options.script, arguments, vary=options.vary)
    with progress("fit") as tell:
        answer = estimates.fit(program, **search(options), tell=tell)
    return finish(answer, files)


COMMAND = Subcommand(
    "fit", "find the largest value of a variable that fits on a card", configure, run
)
