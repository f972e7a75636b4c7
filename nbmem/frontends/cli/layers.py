"""`nbmem layers SCRIPT MODEL`: list a script's model layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.frontends.cli.estimates import finish
from nbmem.frontends.cli.subcommand import Subcommand, targets

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from nbmem.engine.choice import add_engine
    from nbmem.estimates import options

    parser.add_argument("script", metavar="SCRIPT", help="the Python file that makes the model")
    parser.add_argument("model", metavar="MODEL", help="the model's name in it")
    options.add_layers(parser)
    parser.add_argument("--gpu", metavar="NAME", help="on which card (an H100 80GB)")
    add_engine(parser)
    options.add_files(parser)


def run(options: argparse.Namespace) -> int:
    """Run the script on the virtual card, and print its model's table."""
    from nbmem import estimates
    from nbmem.estimates.options import shape
    from nbmem.estimates.programs import programs

    files = targets(options)
    program = programs.script(options.script, tuple(options.script_arguments))
    answer = estimates.layers_of(
        program,
        options.model,
        shape(options.input, options.batch),
        gpu=options.gpu,
        engine=options.engine,
    )
    return finish(answer.sorted(options.sort), files)


COMMAND = Subcommand(
    "layers", "list a model layer by layer with its bytes and FLOPs", configure, run
)
