"""`%nbmem export FORMAT FILE`: export the last recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import add_device, add_private, parser_of
from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook, file_name
from nbmem.frontends.notebook.display import show_bundle, text_bundle

if TYPE_CHECKING:
    import argparse


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("format", nargs="?")
    parser.add_argument("file", nargs="*")
    add_device(parser)
    add_private(parser)


_PARSER = parser_of("%nbmem export", _add)


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem.views.exports import FORMATS, find_format

    options = _PARSER.read(argument)
    if not options.file:
        listed = "\n".join(f"  {known.name:<10}{known.what}" for known in FORMATS)
        raise UsageError(f"%nbmem export needs a format and a file. The formats are:\n{listed}")
    chosen = find_format(options.format)
    name = file_name(" ".join(options.file), f"export {chosen.name}")
    path = notebook.last().export(chosen.name, name, options.device, private=options.private)
    show_bundle(text_bundle(f"Wrote {path}: {chosen.what}."))


COMMAND = MagicCommand(
    "export",
    "FORMAT FILE [--device N] [--private]",
    "write the last recording as html, json, csv, perfetto or snapshot",
    _run,
    options=_PARSER.options,
    offers=lambda asked: completions.files(asked) if asked.before else completions.formats(),
)
