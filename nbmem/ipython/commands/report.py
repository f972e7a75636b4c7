"""`%nbmem report`: the last report again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.ipython.commands.base import Command
from nbmem.ipython.tracer import show

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def _run(notebook: Notebook, _argument: str) -> None:
    trace = notebook.last()
    trace.report()  # says in one sentence why there is nothing to show
    show(trace)


COMMAND = Command("report", "", "show the last report (`%nbmem` alone does the same)", _run)
