"""`nbmem report FILE`: a saved session or a torch snapshot, read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.cli.base import EXIT_FAILED, EXIT_OK, Subcommand, targets
from nbmem.cli.run import add_outputs, write_report
from nbmem.core.arguments import add_max_size

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "file", metavar="FILE", help="what `--save` wrote, or torch.cuda.memory._dump_snapshot()"
    )
    add_outputs(parser)
    add_max_size(parser)
    parser.add_argument("--quiet", action="store_true", help="print no report")


def run(options: argparse.Namespace) -> int:
    """Read the file and write its report."""
    from nbmem import api

    files = targets(options)
    trace = api.open(options.file, max_size=options.max_size)
    # A file without anything in it is an error here, unlike a script without CUDA.
    trace.report(options.device)
    written = write_report(trace, files, device=options.device, quiet=options.quiet)
    return EXIT_OK if written else EXIT_FAILED


COMMAND = Subcommand("report", "show a saved session or a torch memory snapshot", configure, run)
