"""`%nbmem save FILE`: the last recording, for later or for a report of a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.ipython.commands.base import Command, file_name, text_bundle
from nbmem.ipython.tracer import show_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def _run(notebook: Notebook, argument: str) -> None:
    name = file_name(argument, "save")
    try:
        path = notebook.last().save(name)
    except OSError as err:
        raise UsageError(
            f"The session cannot be written to {name} ({err.strerror or err}). "
            "It is still in memory: name a file in a folder that you may write to."
        ) from err
    show_bundle(text_bundle(f"Saved to {path}. `%nbmem open {path}` shows it again."))


COMMAND = Command("save", "FILE", "save the last recording", _run)
