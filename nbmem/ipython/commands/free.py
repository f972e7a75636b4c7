"""`%nbmem free`: gives memory back, exactly what is named, and says what it brought."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.ipython.commands import candidates
from nbmem.ipython.commands.base import MagicCommand
from nbmem.ipython.showing import show_bundle
from nbmem.views.freed import render_freed, render_freed_html

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem import report
    from nbmem.ipython.freeing import perform

    done = perform(notebook, report.Command(name="free", arguments=tuple(argument.split())))
    show_bundle({"text/plain": render_freed(done), "text/html": render_freed_html(done)})


COMMAND = MagicCommand(
    "free",
    "cache|traceback|out|NAME...",
    "free that, and measure it (a NAME may be a path: checkpoint['model'])",
    _run,
    offers=candidates.freeable,
)
