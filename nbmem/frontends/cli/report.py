"""`nbmem report FILE`: report on a session, a snapshot or ranks.

Ranks are read from their folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import add_max_size, refuse_private
from nbmem.core.errors import NotWrittenError, UsageError
from nbmem.core.files.untrusted_input import is_folder
from nbmem.frontends.cli.outputs import add_outputs, write_report
from nbmem.frontends.cli.subcommand import (
    EXIT_FAILED,
    EXIT_OK,
    Subcommand,
    print_message,
    targets,
    write_out,
)

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from nbmem.api.rank_folders import World
    from nbmem.api.tracing import Trace


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="what `--save` wrote, a folder of ranks, or torch.cuda.memory._dump_snapshot()",
    )
    parser.add_argument(
        "--rank", metavar="N", type=int, help="of a folder: the report of rank N alone"
    )
    add_outputs(parser)
    add_max_size(parser)
    parser.add_argument("--quiet", action="store_true", help="print no report")


def run(options: argparse.Namespace) -> int:
    """Read the file and write its report."""
    files = targets(options)
    if not is_folder(options.file):
        if options.rank is not None:
            raise UsageError(
                f"--rank chooses from a folder of ranks, and {options.file} is one file."
            )
        from nbmem.api import tracing

        return _report(tracing.open(options.file, max_size=options.max_size), options, files)
    from nbmem.api.rank_folders import open_world

    world = open_world(options.file, options.max_size)
    if options.rank is not None:
        return _report(world.rank(options.rank), options, files)
    return _world(world, options, files)


def _report(trace: Trace, options: argparse.Namespace, files: dict[str, Path]) -> int:
    # A file without data is an error here, unlike a script without CUDA.
    trace.report(options.device)
    written = write_report(
        trace, files, device=options.device, quiet=options.quiet, private=options.private
    )
    return EXIT_OK if written else EXIT_FAILED


def _world(world: World, options: argparse.Namespace, files: dict[str, Path]) -> int:
    if options.private:
        raise refuse_private("what many ranks hold")
    if options.device is not None:
        raise UsageError(
            "--device chooses a card of one process. Name the process, too: "
            f"nbmem report {options.file} --rank N --device {options.device}"
        )
    try:
        if "json" in files:
            from nbmem.core.files.atomic_write import write_json

            write_json(files["json"], world.to_json())
        if "html" in files:
            from nbmem.core.files.atomic_write import write_text

            write_text(files["html"], world.to_page())
    except NotWrittenError as err:
        print_message(str(err))
        return EXIT_FAILED
    if not options.quiet:
        write_out(str(world))
    return EXIT_OK


COMMAND = Subcommand(
    "report", "show a saved session, a folder of ranks, or a torch snapshot", configure, run
)
