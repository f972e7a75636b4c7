"""`%nbmem history`: list what every cell took and left."""

from __future__ import annotations

from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle


def _run(notebook: Notebook, _argument: str) -> None:
    from nbmem.views.mime_bundle import history_bundle

    show_bundle(history_bundle(tuple(notebook.hooks.rows), tuple(notebook.hooks.host_rows)))


COMMAND = MagicCommand("history", "", "list every cell with what it took and left", _run)
