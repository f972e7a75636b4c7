"""`%nbmem top`: list the largest live tensors and their holders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.commands.base import MagicCommand
from nbmem.frontends.notebook.display import show_bundle

if TYPE_CHECKING:
    from nbmem.frontends.notebook.commands.base import Notebook


def _run(_notebook: Notebook, argument: str) -> None:
    from nbmem.api.live_tensors import LARGEST, top

    for bundle in top(_count(argument) if argument else LARGEST).bundles():
        show_bundle(bundle)


def _count(argument: str) -> int:
    if not argument.isdecimal() or not int(argument):
        raise UsageError(f"%nbmem top {argument}: write how many, as in `%nbmem top 20`.")
    return int(argument)


COMMAND = MagicCommand(
    "top", "[N]", "list the largest tensors that live now, and who holds them", _run
)
