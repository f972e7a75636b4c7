"""`nbmem viewer [OUT]`: write the page that opens dropped recordings.

It opens sessions and torch's snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.frontends.cli.subcommand import EXIT_OK, Subcommand, print_message, writable

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "out",
        metavar="OUT",
        nargs="?",
        default="nbmem-viewer.html",
        help="the file to write; the default is %(default)s",
    )


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    from nbmem.core.files.atomic_write import write_text
    from nbmem.views.exports.viewer import viewer_page

    target = writable(options.out, "OUT")
    write_text(target, viewer_page())
    print_message(
        f"wrote {options.out}: open it in a browser and drop a .nbmem file or a snapshot of "
        "torch's onto it. It needs no network and sends nothing."
    )
    return EXIT_OK


COMMAND = Subcommand("viewer", "write the page onto which recordings are dropped", configure, run)
