"""torch.compile beside a guest: it compiles nothing of nbmem's, and meets nothing of it.

Below a compiled function Dynamo has a look at each Python frame before it runs, ours included; it
made a loop without end of one. And what it follows by itself, attribute by attribute, must be
torch's own: where it finds what was lent, it breaks the graph or gives the function up for good.
So our code is passed over, and while something is compiled, what was lent is given back.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.entry_points import entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.capture.patches.method_patches import Lost

_CALLBACKS = "torch._dynamo.callback"


def pass_over(*functions: Callable[..., Any]) -> None:
    """Have Dynamo run functions and what is marked with `entry` as they are, with all they call."""
    torch: Any = loaded_torch()
    dynamo = getattr(getattr(torch, "_C", None), "_dynamo", None)
    eval_frame: Any = getattr(dynamo, "eval_frame", None)
    if not hasattr(eval_frame, "set_code_exec_strategy"):  # before torch 2.7
        return
    skip = eval_frame._FrameAction.SKIP  # noqa: SLF001
    strategy = eval_frame._FrameExecStrategy(skip, skip)  # noqa: SLF001
    for function in (*functions, _marked):
        eval_frame.set_code_exec_strategy(function.__code__, strategy)


@entry("nothing")
def _marked() -> None:
    """What is marked with `entry` shares the code of one wrapper."""


class Compilations:
    """Tells when Dynamo begins to compile something, and when it has done so.

    Dynamo may be imported later than this begins, or forget whom to tell (`torch._dynamo.reset`).

    Args:
        begins: Is told, in the thread that compiles.
        ended: Is told, in whichever thread was the last.
        lost: Leaves a note of a fault.
    """

    def __init__(self, begins: Callable[[], None], ended: Callable[[], None], lost: Lost) -> None:
        self._begins = begins
        self._ended = ended
        self._on = False
        self.lost = lost

    def watch(self) -> None:
        """Begin, or see to it that it is still so."""
        self._on = True
        if not self._attach() and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def watch_no_more(self) -> None:
        """End."""
        self._on = False
        self._leave_imports()
        handler = _handler()
        if handler is not None:
            for told, ours in self._both(handler):
                told[:] = [one for one in told if one != ours]
            if vars(handler).get("clear") == self._cleared:
                del handler.clear

    def _attach(self) -> bool:
        handler = _handler()
        if handler is None:
            return False
        for told, ours in self._both(handler):
            if ours not in told:
                told.append(ours)
        handler.clear = self._cleared
        return True

    def _as_before(self) -> None:
        handler = _handler()
        if handler is not None:
            type(handler).clear(handler)

    @entry("what torch.compile does", otherwise=_as_before)
    def _cleared(self) -> None:
        """Called by `torch._dynamo.reset` in the place of the handler's own `clear`."""
        self._as_before()
        if self._on:
            self._attach()

    def _both(self, handler: Any) -> tuple[tuple[list[Any], Any], ...]:
        lists = handler.start_callbacks, handler.end_callbacks
        return (lists[0], self._compilation_begins), (lists[1], self._compilation_ended)

    @entry("what torch.compile does")
    def _compilation_begins(self, *_arguments: Any) -> None:
        if self._on:
            self._begins()

    @entry("what torch.compile does")
    def _compilation_ended(self, *_arguments: Any) -> None:
        if self._on:
            self._ended()

    def _leave_imports(self) -> None:
        sys.meta_path[:] = [one for one in sys.meta_path if one is not self]

    @entry("what torch.compile does")
    def find_spec(self, name: str, *_path_and_target: Any) -> None:
        """Asked for each module that is about to be imported; Dynamo's are of interest."""
        if name.startswith("torch._dynamo.") and self._on and self._attach():
            self._leave_imports()


def _handler() -> Any | None:
    """Dynamo's handler of callbacks; None before Dynamo is imported, and where it has none."""
    handler = getattr(sys.modules.get(_CALLBACKS), "callback_handler", None)
    there = hasattr(handler, "start_callbacks") and hasattr(handler, "end_callbacks")
    return handler if there else None
