"""`%nbmem free`: free exactly what is named, and measure the effect."""

from __future__ import annotations

from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem.api.freeing import free

    done = free(*argument.split())
    notebook.tracer.freed.extend(done.actions)
    show_bundle(done._repr_mimebundle_())


COMMAND = MagicCommand(
    "free",
    "cache|frameworks|traceback|out|NAME...",
    "free that, and measure it (a NAME may be a path: checkpoint['model'])",
    _run,
    offers=completions.freeable,
)
