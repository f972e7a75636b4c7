"""`%nbmem save FILE`: save the last recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import add_private, parser_of
from nbmem.core.errors import NotWrittenError, UsageError
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook, file_name
from nbmem.frontends.notebook.display import show_bundle, text_bundle

if TYPE_CHECKING:
    import argparse


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="*")
    add_private(parser)


_PARSER = parser_of("%nbmem save", _add)


def _run(notebook: Notebook, argument: str) -> None:
    options = _PARSER.read(argument)
    name = file_name(" ".join(options.file), "save")
    try:
        path = notebook.last().save(name, private=options.private)
    except NotWrittenError as err:
        raise UsageError(f"{err} The recording is still in memory.") from err
    show_bundle(text_bundle(f"Saved to {path}. `%nbmem open {path}` shows it again."))


COMMAND = MagicCommand(
    "save",
    "FILE [--private]",
    "save the last recording",
    _run,
    options=_PARSER.options,
    offers=completions.recordings,
)
