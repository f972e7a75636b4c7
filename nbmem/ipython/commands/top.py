"""`%nbmem top`: the largest tensors that live now, and who holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.ipython.commands.base import MagicCommand
from nbmem.ipython.showing import show_bundle
from nbmem.views.top import render_top, render_top_html

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook

DEFAULT = 10


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem.ipython.live_storages import live_now

    most = _count(argument)
    cards = {index: held for index, held in live_now(notebook.shell.user_ns).items() if held}
    for index, held in (cards or {0: ()}).items():
        card = f"Card {index}"
        show_bundle(
            {
                "text/plain": render_top(held, most, card),
                "text/html": render_top_html(held, most, card),
            }
        )


def _count(argument: str) -> int:
    if not argument:
        return DEFAULT
    if not argument.isdecimal() or not int(argument):
        raise UsageError(f"%nbmem top {argument}: write how many, as in `%nbmem top 20`.")
    return int(argument)


COMMAND = MagicCommand(
    "top", "[N]", "list the largest tensors that live now, and who holds them", _run
)
