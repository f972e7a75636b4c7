"""`%nbmem history`: what every cell took and left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.ipython.commands.base import Command
from nbmem.ipython.tracer import show_bundle
from nbmem.views.history import render_history, render_history_html

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def _run(notebook: Notebook, _argument: str) -> None:
    rows = tuple(notebook.hooks.rows)
    show_bundle({"text/plain": render_history(rows), "text/html": render_history_html(rows)})


COMMAND = Command("history", "", "list every cell with what it took and left", _run)
