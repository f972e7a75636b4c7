"""Keep torch.compile away from nbmem's own code and patches.

Inside a compiled function Dynamo inspects each Python frame before it runs, nbmem's included. This
once caused an endless loop. Attributes that Dynamo traces must be torch's own: if it finds a patch,
it breaks the graph or gives up the function permanently. So Dynamo skips nbmem's code, and patches
are removed while something is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.entry_points import entry

if TYPE_CHECKING:
    OnFault = Callable[[str, Exception], None]

_CALLBACKS = "torch._dynamo.callback"


def skip_in_dynamo(*functions: Callable[..., Any]) -> None:
    """Have Dynamo skip these functions and those marked with `entry`.

    They run unchanged, with all functions that they call. Does nothing before torch 2.7.
    """
    torch: Any = loaded_torch()
    dynamo = getattr(getattr(torch, "_C", None), "_dynamo", None)
    eval_frame: Any = getattr(dynamo, "eval_frame", None)
    if not hasattr(eval_frame, "set_code_exec_strategy"):  # before torch 2.7
        return
    skip = eval_frame._FrameAction.SKIP  # noqa: SLF001
    strategy = eval_frame._FrameExecStrategy(skip, skip)  # noqa: SLF001
    for function in (*functions, _marked):
        eval_frame.set_code_exec_strategy(function.__code__, strategy)


def has_compiled() -> bool:
    """Return whether Dynamo has compiled anything in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames", {}).get("total", 0))


def is_compiled(value: object) -> bool:
    """Return whether a value is a function that `torch.compile` has returned."""
    return type(value) is FunctionType and any(map(_of_dynamo, value.__dict__))


def _of_dynamo(name: str) -> bool:
    return name.startswith("_torchdynamo")


@entry("nothing")
def _marked() -> None:
    """Carry the wrapper code that all `entry` functions share."""


class Compilations:
    """Callbacks for the start and the end of Dynamo's compilations.

    Dynamo may be imported after they are registered, or drop them (`torch._dynamo.reset`).

    Args:
        begins: Called in the thread that compiles.
        ended: Called in the thread that compiled last.
        on_fault: Records a note about a fault.
    """

    def __init__(
        self, begins: Callable[[], None], ended: Callable[[], None], on_fault: OnFault
    ) -> None:
        self._begins = begins
        self._ended = ended
        self._on = False
        self.on_fault = on_fault

    def watch(self) -> None:
        """Register the callbacks, at once or when Dynamo is imported."""
        self._on = True
        if not self._attach() and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop_watching(self) -> None:
        """Remove the callbacks."""
        self._on = False
        self._leave_imports()
        handler = _handler()
        if handler is not None:
            for callbacks, ours in self._both(handler):
                callbacks[:] = [one for one in callbacks if one != ours]
            if vars(handler).get("clear") == self._cleared:
                del handler.clear

    def _attach(self) -> bool:
        handler = _handler()
        if handler is None:
            return False
        for callbacks, ours in self._both(handler):
            if ours not in callbacks:
                callbacks.append(ours)
        handler.clear = self._cleared
        return True

    def _as_before(self) -> None:
        handler = _handler()
        if handler is not None:
            type(handler).clear(handler)

    @entry("what torch.compile does", otherwise=_as_before)
    def _cleared(self) -> None:
        """Clear Dynamo's callbacks, then register nbmem's again.

        `torch._dynamo.reset` calls this instead of the handler's own `clear`.
        """
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
        """Register the callbacks when a module of Dynamo's is imported.

        Python calls this for each import, as for any finder in `sys.meta_path`. It finds no module
        itself.
        """
        if name.startswith("torch._dynamo.") and self._on and self._attach():
            self._leave_imports()


def _handler() -> Any | None:
    """Return Dynamo's callback handler, or None.

    None before Dynamo is imported, and if it has no such handler.
    """
    handler = getattr(sys.modules.get(_CALLBACKS), "callback_handler", None)
    there = hasattr(handler, "start_callbacks") and hasattr(handler, "end_callbacks")
    return handler if there else None
