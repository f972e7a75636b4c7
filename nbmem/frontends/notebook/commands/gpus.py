"""`%nbmem gpus`: list the processes on the real cards."""

from __future__ import annotations

from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle, text_bundle


def _run(_notebook: Notebook, _argument: str) -> None:
    from nbmem.api.live_tensors import in_use_now

    show_bundle(text_bundle(in_use_now()))


COMMAND = MagicCommand(
    "gpus", "", "list who is on the real cards now: processes, notebooks, other kernels", _run
)
