"""`%nbmem open FILE`: show a session, a torch snapshot or a rank folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import add_max_size, parser_of
from nbmem.core.files.untrusted_input import is_folder
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook, file_name
from nbmem.frontends.notebook.display import show, show_bundle

if TYPE_CHECKING:
    import argparse


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="*")
    add_max_size(parser)


_PARSER = parser_of("%nbmem open", _add)


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem.api import tracing

    options = _PARSER.read(argument)
    path = file_name(" ".join(options.file), "open")
    if is_folder(path):
        from nbmem.api.rank_folders import open_world

        show_bundle(open_world(path, options.max_size)._repr_mimebundle_())
        return
    trace = tracing.open(path, max_size=options.max_size)
    trace.report()
    notebook.tracer.last = trace
    show(trace)


COMMAND = MagicCommand(
    "open",
    "FILE [--max-size SIZE]",
    "show a saved session, a folder of ranks, or a torch memory snapshot",
    _run,
    options=_PARSER.options,
    offers=completions.recordings,
)
