"""`%nbmem save FILE`: the last recording, for later or for a report of a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import NotWrittenError, UsageError
from nbmem.ipython.commands import candidates
from nbmem.ipython.commands.base import MagicCommand, file_name
from nbmem.ipython.showing import show_bundle, text_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def _run(notebook: Notebook, argument: str) -> None:
    name = file_name(argument, "save")
    try:
        path = notebook.last().save(name)
    except NotWrittenError as err:
        raise UsageError(f"{err} The recording is still in memory.") from err
    show_bundle(text_bundle(f"Saved to {path}. `%nbmem open {path}` shows it again."))


COMMAND = MagicCommand(
    "save", "FILE", "save the last recording", _run, offers=candidates.recordings
)
