"""Where the training loop is: torch's modules, autograd engine and optimizers, watched from inside.

Nothing in the user's code changes, and nothing of theirs is held. torch has hooks for some of this,
but they can be met: one in a module is pickled with it and refused by a scripted one, and a global
one takes every module inside off torch's fast path and puts a frame more into its tracebacks. So
what torch itself looks up on its way is lent (lent.py says how):

- `Module._call_impl`, which `Module.__call__` calls: only the outermost call is told, and the
  hundreds inside it cost 0.2 us each;
- the engine behind `torch.autograd.graph.Variable`, which `_engine_run_backward` calls
  (https://github.com/pytorch/pytorch/blob/v2.13.0/torch/autograd/graph.py#L846);
- `_optimizer_step_pre_hooks` and `_post_hooks`, which an optimizer's step reads before and after
  (https://github.com/pytorch/pytorch/blob/v2.13.0/torch/optim/optimizer.py#L488);
- `zero_grad` of optimizers and modules;
- `data` of tensors, through which weights are changed by hand (data_writes.py).

Each is told in the thread that does it.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

from nbmem.capture.hooks.data_writes import LentData, lent_data
from nbmem.capture.interpreter.object_members import locals_of
from nbmem.capture.patches.compilations import Compilations
from nbmem.capture.patches.method_patches import LentAttribute, LentMethod
from nbmem.capture.patches.name_patches import LentName
from nbmem.capture.tensors.modules import is_tensor
from nbmem.capture.tensors.tensors import quiet, requires_grad, stays_on_host
from nbmem.capture.torch_cuda import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import FrameType

    from nbmem.capture.patches.method_patches import Lost

    Part = LentMethod | LentAttribute | LentName | LentData


class Listener(Protocol):
    """Hears of the training loop. Its methods hold nothing that they are given."""

    def in_forward(self) -> bool:
        """Whether a forward of this thread's has begun, and no backward has followed it."""

    def forward_begins(self, module: Any, *, grad: bool, in_backward: bool) -> None:
        """The outermost module call begins; `in_backward` if it recomputes (checkpointing)."""

    def forward_ends(
        self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, in_backward: bool
    ) -> None:
        """The outermost module call has ended, by its result or by an exception."""

    def backward_begins(self, outputs: Sequence[Any]) -> None:
        """The engine is about to run from these tensors or graph edges."""

    def backward_ends(self) -> None:
        """The engine has run, or failed."""

    def optimizer_begins(self, optimizer: Any, *, closure: bool) -> None:
        """optimizer.step() begins; with a closure, the whole pass runs inside it."""

    def optimizer_ends(self, optimizer: Any) -> None:
        """optimizer.step() has ended (not told if it raised)."""

    def zero_grad_begins(self, owner: Any) -> None:
        """zero_grad() of an optimizer or a module begins."""

    def zero_grad_ends(self) -> None:
        """zero_grad() has ended."""


class TrainingHooks:
    """Lends what is looked up, and takes back every part of it.

    Args:
        listener: Is told.
        lost: Leaves a note of a fault in here; the part that failed is deaf from then on.
        late: Asked before each outermost call what else is to be lent from now on.
        of_host: Asked before each whether the host's memory is what is recorded.
    """

    def __init__(
        self,
        listener: Listener,
        lost: Lost,
        late: Callable[[], Iterable[Part]] = tuple,
        of_host: Callable[[], bool] = bool,
    ) -> None:
        self._listener = listener
        self._late = late
        self._of_host = of_host
        self._lost = lost
        self._lent: list[Part] = []
        self._listening = False
        self._pid = os.getpid()
        self._compilations = Compilations(self._step_aside, self._come_back, lost)
        self._moving = threading.RLock()

    def install(self) -> None:
        """Begin to tell the listener. Needs torch; parts that this torch lacks stay out."""
        torch: Any = import_torch()
        if torch is None or self._lent:
            return
        module = torch.nn.Module
        optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name
        optimizer = optimizers.Optimizer
        lost = self._deaf
        if hasattr(module, "_wrapped_call_impl"):  # since torch 2.1
            by = module._wrapped_call_impl.__code__  # noqa: SLF001
            self._lend(LentMethod(module, "_call_impl", self._enter, lost, by))
        if hasattr(torch.autograd.graph, "Variable"):
            path = ("_execution_engine", "run_backward")
            self._lend(LentName(torch.autograd.graph, "Variable", path, self._run, lost))
        for name, read in (
            ("_optimizer_step_pre_hooks", self._step_begins),
            ("_optimizer_step_post_hooks", self._step_ends),
        ):
            by_step = optimizers.__file__ or "", "wrapper"
            self._lend(LentAttribute(optimizer, name, read, lost, by_step))
        for owner in (optimizer, module):
            self._lend(LentMethod(owner, "zero_grad", self._zero_grad, lost))
        self._lend(lent_data(torch, lost))
        self._lend_late()
        self._compilations.watch()
        self._listening = True

    def remove(self) -> None:
        """Put everything back as it was."""
        self._listening = False
        try:
            self._compilations.watch_no_more()
        finally:
            with self._moving:
                while self._lent:
                    self._lent[-1].give_back()
                    self._lent.pop()

    def _step_aside(self) -> None:
        """Give everything back while something is compiled."""
        with self._moving:
            for part in self._lent:
                part.give_back()

    def _come_back(self) -> None:
        with self._moving:
            for part in self._lent:
                part.lend()

    def _lend(self, part: Part) -> None:
        self._lent.append(part)
        part.lend()

    def _lend_late(self) -> None:
        with self._moving:
            for part in self._late():
                self._lend(part)

    def _deaf(self, part: str, err: Exception) -> None:
        self._listening = False
        self._lost(part, err)

    def _is_deaf(self) -> bool:
        """After the end, after a fault, and in a child that was forked meanwhile."""
        return not self._listening or os.getpid() != self._pid

    # --- the outermost module call

    def _enter(self, module: Any, frame: FrameType) -> Callable[[], None] | None:
        torch: Any = import_torch()
        if self._is_deaf() or torch.compiler.is_compiling() or torch._C._get_tracing_state():  # noqa: SLF001
            return None
        self._lend_late()
        in_backward = in_engine()
        grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        grad = grad or _is_checkpointed(frame)
        given = locals_of(frame)
        args, kwargs = given.get("args", ()), given.get("kwargs", {})
        del given
        if not in_backward:
            with quiet():
                of_host, in_forward = self._of_host(), self._listener.in_forward()
                aside = stays_on_host(module, args, kwargs, of_host=of_host, in_forward=in_forward)
            if aside:
                return None
        self._listener.forward_begins(module, grad=grad, in_backward=in_backward)

        def left() -> None:
            if not self._is_deaf():
                self._listener.forward_ends(module, args, kwargs, in_backward=in_backward)

        return left

    # --- backward

    def _run(self, frame: FrameType) -> Callable[[], None] | None:
        if self._is_deaf():
            return None
        if in_engine():  # a backward inside a backward
            return None
        self._listener.backward_begins(locals_of(frame).get("t_outputs", ()))

        def ran() -> None:
            if not self._is_deaf():
                self._listener.backward_ends()

        return ran

    # --- optimizers

    def _step_begins(self, optimizer: Any, frame: FrameType) -> None:
        if self._is_deaf():
            return
        given = locals_of(frame)
        args, kwargs = given.get("args", ()), given.get("kwargs", {})
        # args[0] is the optimizer again; Lightning and LBFGS give step() a closure.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._listener.optimizer_begins(optimizer, closure=closure is not None)

    def _step_ends(self, optimizer: Any, _frame: FrameType) -> None:
        if not self._is_deaf():
            self._listener.optimizer_ends(optimizer)

    # --- zero_grad

    def _zero_grad(self, owner: Any, _frame: FrameType) -> Callable[[], None] | None:
        if self._is_deaf():
            return None
        self._listener.zero_grad_begins(owner)

        def done() -> None:
            if not self._is_deaf():
                self._listener.zero_grad_ends()

        return done


def in_engine() -> bool:
    """Whether this thread runs a node of a graph: on a card those are threads of the engine's."""
    torch: Any = import_torch()
    return bool(torch._C._current_graph_task_id() >= 0)  # noqa: SLF001


def _is_checkpointed(frame: FrameType | None) -> bool:
    """Whether a module is called by a reentrant checkpoint whose backward will call it again.

    Such a checkpoint runs its part of the forward without gradients:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/checkpoint.py#L237
    """
    checkpoint: Any = sys.modules.get("torch.utils.checkpoint")
    code = getattr(getattr(checkpoint, "CheckpointFunction", None), "forward", None)
    code = getattr(code, "__code__", None)
    while code is not None and frame is not None:
        if frame.f_code is code:
            return any(map(_needs_gradient, locals_of(frame).get("args", ())))
        frame = frame.f_back
    return False


def _needs_gradient(given: object) -> bool:
    return is_tensor(given) and requires_grad(given)
