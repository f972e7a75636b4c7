"""`%nbmem explain NAME`: explain a tip; without a name, list all of them.

A tip's page has what it sees, what it costs, what to do, and when to ignore it.
"""

from __future__ import annotations

from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle, text_bundle


def _run(_notebook: Notebook, argument: str) -> None:
    from nbmem.views.tip_catalogue import render_catalogue

    show_bundle(text_bundle(render_catalogue(argument)))


COMMAND = MagicCommand(
    "explain",
    "[NAME]",
    "what a tip means; without a name, all of them",
    _run,
    offers=completions.rules,
)
