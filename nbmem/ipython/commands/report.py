"""`%nbmem report`: the last report again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.ipython.commands.base import MagicCommand
from nbmem.ipython.options import DEVICE
from nbmem.ipython.showing import readable, show

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def _run(notebook: Notebook, argument: str) -> None:
    trace, device = notebook.last(), _device(argument)
    readable(trace, device)  # says in one sentence why there is nothing to show
    show(trace, device=device)


def _device(argument: str) -> int | None:
    match argument.split():
        case []:
            return None
        case ["--device", number] if number.isdecimal():
            return int(number)
    raise UsageError(
        f"%nbmem report takes --device N, a card's number; {argument!r} was not understood."
    )


COMMAND = MagicCommand(
    "report",
    "[--device N]",
    "show the last report (`%nbmem` alone does the same), or that of card N",
    _run,
    options=lambda: (DEVICE,),
)
