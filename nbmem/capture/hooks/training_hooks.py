"""Report forward, backward and optimizer steps from inside torch.

Nothing in the user's code changes, and none of its objects is retained. torch has hooks for some of
this, but they have side effects. A hook in a module is pickled with it and refused by a scripted
module. A global hook takes every module inside off torch's fast path and adds a frame to its
tracebacks. So attributes that torch itself looks up are patched (method_patches.py explains how):

- `Module._call_impl`, which `Module.__call__` calls: only the outermost call is reported, and the
  hundreds inside it cost 0.2 us each (running_modules.py records them in a few forwards);
- the engine behind `torch.autograd.graph.Variable`, which `_engine_run_backward` calls
  (https://github.com/pytorch/pytorch/blob/v2.13.0/torch/autograd/graph.py#L846);
- `_optimizer_step_pre_hooks` and `_post_hooks`, which an optimizer's step reads before and after
  (https://github.com/pytorch/pytorch/blob/v2.13.0/torch/optim/optimizer.py#L488);
- `zero_grad` of optimizers and modules;
- `data` of tensors, through which weights are changed by hand.

Each event is reported in the thread in which it happens.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from nbmem.capture.hooks import nested_calls
from nbmem.capture.hooks.data_writes import DataPatch, create_data_patch
from nbmem.capture.interpreter.object_members import locals_of
from nbmem.capture.patches.compilations import Compilations
from nbmem.capture.patches.method_patches import AttributePatch, MethodPatch
from nbmem.capture.patches.name_patches import NamePatch
from nbmem.capture.tensors.kv_caches import given_caches
from nbmem.capture.tensors.modules import is_tensor
from nbmem.capture.tensors.tensors import is_on_host, requires_grad, without_torch_function
from nbmem.capture.torch_cuda import import_torch

if TYPE_CHECKING:
    from nbmem.capture.patches.compilations import OnFault
    from nbmem.capture.tensors.running_modules import ModuleCalls

    Part = MethodPatch | AttributePatch | NamePatch | DataPatch


class Listener(Protocol):
    """A receiver of training events; its methods hold no argument."""

    def in_forward(self) -> bool:
        """Return whether this thread has begun a forward without a backward yet."""

    def forward_begins(
        self, module: Any, *, grad: bool, in_backward: bool, caches: Sequence[Any] = ()
    ) -> None:
        """Handle the start of an outermost module call.

        `in_backward` is set if the call recomputes (checkpointing). `caches` are those of a
        language model that the call is given.
        """

    def forward_ends(
        self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, in_backward: bool
    ) -> None:
        """Handle the end of an outermost call, by its result or an exception."""

    def backward_begins(self, outputs: Sequence[Any]) -> None:
        """Handle the start of the engine from these tensors or graph edges."""

    def backward_ends(self) -> None:
        """Handle the end of the engine's run, also after a failure."""

    def optimizer_begins(self, optimizer: Any, *, closure: bool) -> None:
        """Handle the start of optimizer.step().

        With a closure, the whole pass runs inside it.
        """

    def optimizer_ends(self, optimizer: Any) -> None:
        """Handle the end of optimizer.step(); not called if it raised."""

    def zero_grad_begins(self, owner: Any) -> None:
        """Handle the start of zero_grad() of an optimizer or a module."""

    def zero_grad_ends(self) -> None:
        """Handle the end of zero_grad()."""


class TrainingHooks:
    """Patches in torch that report the training loop to a listener.

    Args:
        listener: Receives the events.
        on_fault: Records a fault in the hooks; nothing is reported after that.
        late: Called before each outermost call; returns further patches to install.
        of_host: Called before each outermost call; returns whether the host's memory is
            recorded.
        calls: Records which module creates a graph's node.
    """

    def __init__(
        self,
        listener: Listener,
        on_fault: OnFault,
        late: Callable[[], Iterable[Part]],
        of_host: Callable[[], bool],
        calls: ModuleCalls,
    ) -> None:
        self._listener = listener
        self._late = late
        self._of_host = of_host
        self._calls = calls
        self._on_fault = on_fault
        self._lent: list[Part] = []
        self._listening = False
        self._pid = os.getpid()
        self._compilations = Compilations(self._step_aside, self._resume, on_fault)
        self._moving = threading.RLock()

    def install(self) -> None:
        """Install the patches and start reporting.

        Needs torch; parts that this torch lacks are omitted.
        """
        torch: Any = import_torch()
        if torch is None or self._lent:
            return
        module = torch.nn.Module
        optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name
        optimizer = optimizers.Optimizer
        on_fault = self._stop_after_fault
        if hasattr(module, "_wrapped_call_impl"):  # since torch 2.1
            by = module._wrapped_call_impl.__code__  # noqa: SLF001
            calls = MethodPatch(module, "_call_impl", self._enter, on_fault, by)
            calls.nested = self._calls.observer
            self._lend(calls)
        if hasattr(torch.autograd.graph, "Variable"):
            path = ("_execution_engine", "run_backward")
            self._lend(NamePatch(torch.autograd.graph, "Variable", path, self._run, on_fault))
        for name, read in (
            ("_optimizer_step_pre_hooks", self._step_begins),
            ("_optimizer_step_post_hooks", self._step_ends),
        ):
            by_step = optimizers.__file__ or "", "wrapper"
            self._lend(AttributePatch(optimizer, name, read, on_fault, by_step))
        for owner in (optimizer, module):
            self._lend(MethodPatch(owner, "zero_grad", self._zero_grad, on_fault))
        self._lend(create_data_patch(torch, on_fault))
        self._lend_late()
        self._compilations.watch()
        self._listening = True

    def remove(self) -> None:
        """Revert every patch."""
        self._listening = False
        try:
            self._compilations.stop_watching()
        finally:
            with self._moving:
                while self._lent:
                    self._lent[-1].revert()
                    self._lent.pop()

    def _step_aside(self) -> None:
        """Revert the patches while something is compiled.

        Functions that call nbmem get their own code again, and keep it.
        """
        nested_calls.restore()
        with self._moving:
            for part in self._lent:
                part.revert()

    def _resume(self) -> None:
        with self._moving:
            for part in self._lent:
                part.apply()

    def _lend(self, part: Part) -> None:
        self._lent.append(part)
        part.apply()

    def _lend_late(self) -> None:
        with self._moving:
            for part in self._late():
                self._lend(part)

    def _stop_after_fault(self, part: str, err: Exception) -> None:
        self._listening = False
        self._on_fault(part, err)

    def _is_inactive(self) -> bool:
        """Return whether events are ignored now.

        They are after the end, after a fault, and in a process that was forked meanwhile.
        """
        return not self._listening or os.getpid() != self._pid

    # --- the outermost module call

    def _enter(self, module: Any, frame: FrameType) -> Callable[[], None] | None:
        torch: Any = import_torch()
        if self._is_inactive() or torch.compiler.is_compiling() or torch._C._get_tracing_state():  # noqa: SLF001
            return None
        self._lend_late()
        in_backward = in_engine()
        grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        grad = grad or _is_checkpointed(frame)
        given = locals_of(frame)
        args, kwargs = given.get("args", ()), given.get("kwargs", {})
        del given
        if not in_backward:
            with without_torch_function():
                of_host, in_forward = self._of_host(), self._listener.in_forward()
                aside = is_on_host(module, args, kwargs, of_host=of_host, in_forward=in_forward)
            if aside:
                return None
        caches = given_caches(args, kwargs)
        self._listener.forward_begins(module, grad=grad, in_backward=in_backward, caches=caches)
        del caches
        ended = self._calls.begin(module, grad=grad and not in_backward)

        def left() -> None:
            ended()
            if not self._is_inactive():
                self._listener.forward_ends(module, args, kwargs, in_backward=in_backward)

        return left

    # --- backward

    def _run(self, frame: FrameType) -> Callable[[], None] | None:
        if self._is_inactive():
            return None
        if in_engine():  # a backward inside a backward
            return None
        self._listener.backward_begins(locals_of(frame).get("t_outputs", ()))

        def ran() -> None:
            if not self._is_inactive():
                self._listener.backward_ends()

        return ran

    # --- optimizers

    def _step_begins(self, optimizer: Any, frame: FrameType) -> None:
        if self._is_inactive():
            return
        given = locals_of(frame)
        args, kwargs = given.get("args", ()), given.get("kwargs", {})
        # args[0] is the optimizer again; Lightning and LBFGS give step() a closure.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._listener.optimizer_begins(optimizer, closure=closure is not None)

    def _step_ends(self, optimizer: Any, _frame: FrameType) -> None:
        if not self._is_inactive():
            self._listener.optimizer_ends(optimizer)

    # --- zero_grad

    def _zero_grad(self, owner: Any, _frame: FrameType) -> Callable[[], None] | None:
        if self._is_inactive():
            return None
        self._listener.zero_grad_begins(owner)

        def done() -> None:
            if not self._is_inactive():
                self._listener.zero_grad_ends()

        return done


def in_engine() -> bool:
    """Return whether this thread runs a node of a graph.

    On a card such threads are the engine's.
    """
    torch: Any = import_torch()
    return bool(torch._C._current_graph_task_id() >= 0)  # noqa: SLF001


def _is_checkpointed(frame: FrameType | None) -> bool:
    """Return whether a reentrant checkpoint calls a module.

    Its backward will call the module again.

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
