"""`%nbmem open FILE`: a saved session, a snapshot that torch wrote, or a folder of ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbmem.files.door import is_folder
from nbmem.ipython.commands import candidates
from nbmem.ipython.commands.base import MagicCommand, file_name
from nbmem.ipython.options import CommandOption
from nbmem.ipython.showing import show, show_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


_LINE = re.compile(r"(.*?)\s+--max-size\s+(\S+)")


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem import api

    line = _LINE.fullmatch(argument.strip())
    name, size = (line[1], line[2]) if line else (argument, None)
    path = file_name(name, "open")
    if is_folder(path):
        from nbmem.world import open_world

        show_bundle(open_world(path, size)._repr_mimebundle_())
        return
    trace = api.open(path, max_size=size)
    trace.report()
    notebook.tracer.last = trace
    show(trace)


COMMAND = MagicCommand(
    "open",
    "FILE [--max-size SIZE]",
    "show a saved session or a torch memory snapshot",
    _run,
    options=lambda: (
        CommandOption("--max-size", "SIZE", "open a file that is larger, up to this"),
    ),
    offers=candidates.recordings,
)
