"""`%nbmem report`: show the last report again."""

from __future__ import annotations

from nbmem.core.arguments import add_device, parser_of
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import require_report, show

_PARSER = parser_of("%nbmem report", add_device)


def _run(notebook: Notebook, argument: str) -> None:
    trace, device = notebook.last(), _PARSER.read(argument).device
    require_report(trace, device)  # gives the reason in one sentence if there is nothing to show
    show(trace, device=device)


COMMAND = MagicCommand(
    "report",
    "[--device N]",
    "show the last report (`%nbmem` alone does the same), or that of card N",
    _run,
    options=_PARSER.options,
)
