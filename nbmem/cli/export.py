"""`nbmem export FORMAT FILE OUT`: a saved session or a torch snapshot, for another program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.cli.base import EXIT_OK, Command, add_max_size, say, writable

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "format", metavar="FORMAT", help="html, json, csv, perfetto or snapshot (memory_viz)"
    )
    parser.add_argument(
        "file", metavar="FILE", help="what `--save` wrote, or torch.cuda.memory._dump_snapshot()"
    )
    parser.add_argument("out", metavar="OUT", help="the file to write")
    add_max_size(parser)
    parser.add_argument("--device", type=int, metavar="N", help="the card, by its CUDA ordinal")


def run(options: argparse.Namespace) -> int:
    """Read the file and write the other."""
    from nbmem import api
    from nbmem.views.exports import find_format

    chosen, target = find_format(options.format), writable(options.out, "OUT")
    trace = api.open(options.file, max_size=options.max_size)
    trace.export(chosen.name, target, options.device)
    say(f"wrote {target}: {chosen.what}.")
    return EXIT_OK


COMMAND = Command("export", "write a recording for another program", configure, run)
