"""The card's dispatch mode in new threads.

It is on in every thread that starts while a virtual card is active.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _python_dispatch as modes

from nbmem.virtual.patches.patcher import Patch

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode

_BOOTSTRAP = "_bootstrap_inner"


def thread_patches(mode: CardMode) -> list[Patch]:
    """Return a patch that starts threads in the card's mode.

    A thread that started earlier does not see the card.
    """
    original_bootstrap = getattr(threading.Thread, _BOOTSTRAP, None)
    if original_bootstrap is None:
        return []

    def bootstrap(self: threading.Thread) -> Any:
        with mode:
            return original_bootstrap(self)

    return [Patch(threading.Thread, _BOOTSTRAP, bootstrap)]


def remove_mode(mode: CardMode) -> None:
    """Remove the mode from this thread's stack, wherever in it the mode is."""
    above: list[Any] = []
    while torch._C._len_torch_dispatch_stack():
        if modes._get_current_dispatch_mode() is mode:
            mode.__exit__(None, None, None)  # torch counts: while a mode is on, nothing compiles
            break
        above.append(modes._pop_mode())
    for other in reversed(above):
        modes._push_mode(other)
