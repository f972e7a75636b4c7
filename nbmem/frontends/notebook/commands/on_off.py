"""`%nbmem on` and `%nbmem off`: switch the delta of every cell."""

from __future__ import annotations

from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle, text_bundle


def _on(notebook: Notebook, _argument: str) -> None:
    notebook.hooks.deltas = True
    show_bundle(text_bundle("Every cell from the next one on gets a line in %nbmem history."))


def _off(notebook: Notebook, _argument: str) -> None:
    notebook.hooks.deltas = False
    show_bundle(text_bundle("No more lines in %nbmem history; %%memtrace still works."))


ON = MagicCommand("on", "", "give every cell a line in the history (so from the start)", _on)
OFF = MagicCommand("off", "", "stop that; `%%memtrace` still works", _off)
