"""`nbmem explain [TIP]`: explain a tip; without a name, list all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.frontends.cli.subcommand import EXIT_OK, Subcommand, write_out

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("tip", metavar="TIP", nargs="?", help="its name, as a report prints it")


def run(options: argparse.Namespace) -> int:
    """Print the page of a tip, or the list of all."""
    from nbmem.views.tip_catalogue import render_catalogue

    write_out(render_catalogue(options.tip))
    return EXIT_OK


COMMAND = Subcommand("explain", "what a tip means; without a name, all of them", configure, run)
