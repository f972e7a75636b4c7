"""`%nbmem gpu`: which card the notebook runs on, and the virtual ones that can stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.ipython.commands import candidates
from nbmem.ipython.commands.base import MagicCommand
from nbmem.ipython.showing import show_bundle, text_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def choose(notebook: Notebook, name: str) -> str:
    """Put virtual cards in by name, or leave them: `off`; returns what to say.

    Raises:
        NbmemError: There is no such card, or what lives on the one in use would be lost.
    """
    from nbmem import devices

    if name.lower() != "off":
        return notebook.tracer.use_card(name)
    told = devices.stop_virtual(notebook.shell.user_ns)
    notebook.tracer.activated = False
    return told


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem import devices

    name = argument.strip("\"'")
    show_bundle(text_bundle(choose(notebook, name) if name else devices.table()))


COMMAND = MagicCommand(
    "gpu",
    "[NAME|2xNAME|auto|off]",
    "list the cards; run on virtual ones (auto: only if there is no real one); leave them",
    _run,
    offers=candidates.cards,
)
