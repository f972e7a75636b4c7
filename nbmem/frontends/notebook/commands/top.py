"""`%nbmem top`: list the largest live tensors and their holders."""

from __future__ import annotations

from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle


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
