"""`%nbmem gpu`: list the cards, switch to virtual ones, or leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import parser_of
from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.commands.estimates import prepare_for_card
from nbmem.frontends.notebook.display import show_bundle, text_bundle

if TYPE_CHECKING:
    import argparse


def switch_card(notebook: Notebook, name: str) -> str:
    """Activate virtual cards by name, or `off`; return the message to show.

    Raises:
        NbmemError: There is no such card, or live tensors on the current one would be lost.
    """
    from nbmem.api import device_selection

    if name.lower() != "off":
        if name.lower() != device_selection.AUTO:
            from nbmem.virtual.card_names import find_cards

            find_cards(name)  # raises before anything is started
            prepare_for_card(notebook.shell, beside=True)
        text = notebook.tracer.use_card(name)
        if notebook.tracer.activated:
            prepare_for_card(notebook.shell)
        return text
    text = device_selection.stop_virtual(notebook.shell.user_ns)
    notebook.tracer.activated = False
    return text


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*")
    parser.add_argument("--ranks", type=int, metavar="N", help="be one rank of so many")
    parser.add_argument("--rank", type=int, metavar="N", help="which; the default is 0")


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem.api import device_selection

    options = parser_of("%nbmem gpu", _add).read(argument)
    name = " ".join(options.name)
    if options.ranks is not None:
        text = notebook.tracer.use_world(
            name or device_selection.AUTO, options.ranks, options.rank or 0
        )
    elif options.rank is not None:
        raise UsageError("--rank says which of --ranks: %nbmem gpu H100 --ranks 64 --rank 37.")
    else:
        text = switch_card(notebook, name) if name else device_selection.table()
    show_bundle(text_bundle(text))


COMMAND = MagicCommand(
    "gpu",
    "[NAME|2xNAME|auto|off] [--ranks N]",
    "list the cards; run on virtual ones (auto: only if there is no real one), also as one rank of "
    "many; leave them",
    _run,
    offers=completions.cards,
    options=lambda: parser_of("%nbmem gpu", _add).options(),
)
