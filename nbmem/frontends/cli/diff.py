"""`nbmem diff A B`: compare two recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import add_max_size
from nbmem.core.errors import UsageError
from nbmem.core.files.atomic_write import write_json, write_text
from nbmem.frontends.cli.subcommand import EXIT_OK, Subcommand, targets, write_out

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", metavar="A", help="a saved session, or a snapshot that torch wrote")
    parser.add_argument(
        "b", metavar="B", help="the other; with --steps it may be left out", nargs="?"
    )
    parser.add_argument(
        "--steps", metavar="M,N", help="compare step M of A with step N of B, not the whole"
    )
    add_max_size(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="write the comparison as JSON (a stable form)"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write it as a page, with both timelines in one picture"
    )


def run(options: argparse.Namespace) -> int:
    """Compare, and print what changed."""
    from nbmem.api.testing import diff
    from nbmem.views.comparison import render_comparison_page

    steps = None if options.steps is None else _steps(options.steps)
    if options.b is None and steps is None:
        raise UsageError(
            "nbmem diff needs a second file, or --steps M,N to compare two steps of A."
        )
    files = targets(options)
    found = diff(options.a, options.b or options.a, steps=steps, max_size=options.max_size)
    if "json" in files:
        write_json(files["json"], found.to_json())
    if "html" in files:
        write_text(files["html"], render_comparison_page(found.comparison))
    write_out(str(found))
    return EXIT_OK


def _steps(text: str) -> tuple[int, int]:
    first, comma, second = text.partition(",")
    if not (comma and first.strip().isdecimal() and second.strip().isdecimal()):
        raise UsageError(f"--steps {text} are not two steps. Write them as --steps 1,5.")
    return int(first), int(second)


COMMAND = Subcommand("diff", "compare two recordings: categories, holders, lines", configure, run)
