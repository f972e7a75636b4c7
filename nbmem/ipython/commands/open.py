"""`%nbmem open FILE`: a saved session, or a snapshot that torch wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.ipython.commands.base import Command, file_name
from nbmem.ipython.tracer import show

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem import api

    trace = api.open(file_name(argument, "open"))
    trace.report()
    notebook.tracer.last = trace
    show(trace)


COMMAND = Command("open", "FILE", "show a saved session or a torch memory snapshot", _run)
