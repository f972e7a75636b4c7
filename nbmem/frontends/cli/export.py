"""`nbmem export FORMAT FILE OUT`: write a file for another program.

The file is a recording or a notebook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import add_device, add_max_size, add_private, refuse_private
from nbmem.core.errors import UsageError
from nbmem.frontends.cli.subcommand import EXIT_OK, Subcommand, print_message, writable

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "format", metavar="FORMAT", help="html, json, csv, perfetto or snapshot (memory_viz)"
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="what `--save` wrote, or torch.cuda.memory._dump_snapshot(); for html a notebook, too",
    )
    parser.add_argument("out", metavar="OUT", help="the file to write")
    add_max_size(parser)
    add_device(parser)
    add_private(parser)


def run(options: argparse.Namespace) -> int:
    """Read the file and export it."""
    if options.file.endswith(".ipynb"):
        return _notebook(options)
    from nbmem.api import tracing
    from nbmem.views.exports import find_format

    chosen, target = find_format(options.format), writable(options.out, "OUT")
    trace = tracing.open(options.file, max_size=options.max_size)
    trace.export(chosen.name, target, options.device, private=options.private)
    print_message(f"wrote {target}: {chosen.what}.")
    return EXIT_OK


def _notebook(options: argparse.Namespace) -> int:
    """Write a saved notebook as a page with interactive reports."""
    if options.private:
        raise refuse_private("a notebook, whose cells are its author's,")
    from nbmem.core.files.atomic_write import write_text
    from nbmem.core.files.untrusted_input import expand_home

    if options.format != "html":
        raise UsageError(f"A notebook is exported as html, not as {options.format}.")
    source, target = expand_home(options.file), writable(options.out, "OUT")
    if not source.is_file():
        raise UsageError(f"There is no notebook {options.file}.")
    try:
        from nbmem.views.exports.notebook import notebook_page
    except ModuleNotFoundError as err:
        raise UsageError(
            f"A notebook's page is nbconvert's, and {err.name} is not installed: "
            "pip install nbconvert."
        ) from None
    try:
        page = notebook_page(source)
    except Exception as err:
        raise UsageError(f"nbconvert cannot read {options.file}: {err}") from err
    write_text(target, page)
    print_message(f"wrote {target}: the notebook as a page, its reports alive.")
    return EXIT_OK


COMMAND = Subcommand("export", "write a recording for another program", configure, run)
