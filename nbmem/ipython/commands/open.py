"""`%nbmem open FILE`: a saved session, or a snapshot that torch wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import add_max_size, parser_of
from nbmem.ipython.commands import candidates
from nbmem.ipython.commands.base import MagicCommand, file_name
from nbmem.ipython.showing import show

if TYPE_CHECKING:
    import argparse

    from nbmem.ipython.commands.base import Notebook


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="*")
    add_max_size(parser)


_PARSER = parser_of("%nbmem open", _add)


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem import api

    options = _PARSER.read(argument)
    name = file_name(" ".join(options.file), "open")
    trace = api.open(name, max_size=options.max_size)
    trace.report()
    notebook.tracer.last = trace
    show(trace)


COMMAND = MagicCommand(
    "open",
    "FILE [--max-size SIZE]",
    "show a saved session or a torch memory snapshot",
    _run,
    options=_PARSER.options,
    offers=candidates.recordings,
)
