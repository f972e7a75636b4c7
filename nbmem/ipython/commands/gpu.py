"""`%nbmem gpu`: which card the notebook runs on, and the virtual ones that can stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.ipython.commands import candidates
from nbmem.ipython.commands.base import MagicCommand, text_bundle
from nbmem.ipython.showing import show_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem import devices

    name = argument.strip("\"'")
    if not name:
        text = devices.table()
    elif name.lower() == "off":
        text = devices.stop_virtual(notebook.shell.user_ns)
        notebook.tracer.activated = False
    else:
        text = notebook.tracer.use_card(name)
    show_bundle(text_bundle(text))


COMMAND = MagicCommand(
    "gpu",
    "[NAME|2xNAME|auto|off]",
    "list the cards; run on virtual ones (auto: only if there is no real one); leave them",
    _run,
    offers=candidates.cards,
)
