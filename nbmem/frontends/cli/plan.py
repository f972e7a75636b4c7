"""`nbmem plan SCRIPT`: find what would make a script fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nbmem.frontends.cli.estimates import finish, progress
from nbmem.frontends.cli.subcommand import Subcommand, targets

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from nbmem.estimates import options

    parser.add_argument("script", metavar="SCRIPT", help="the Python file to run, many times")
    options.add_plan(parser)


def run(options: argparse.Namespace) -> int:
    """Run the script under the remedies that may help; print the table."""
    from nbmem import estimates
    from nbmem.engine.choice import NO_RANKS, choose
    from nbmem.estimates.options import planned, with_batch, worlds
    from nbmem.estimates.programs import programs

    files = targets(options)
    asked = planned(options)
    script = programs.script(options.script, tuple(options.script_arguments))
    if ranks := worlds(options):
        choose(options.engine, NO_RANKS)
        with progress(f"plan {Path(options.script).name}") as tell:
            found = estimates.worlds(script, options.gpu, ranks, margin=asked["margin"], tell=tell)
        return finish(found, files)
    program = with_batch(script, options.batch)
    with progress(f"plan {Path(options.script).name}") as tell:
        answer = estimates.plan(program, **asked, tell=tell)
    return finish(answer, files)


COMMAND = Subcommand("plan", "what would make a script fit, the cheapest first", configure, run)
