"""Where the training loop is: hooks on torch's modules, autograd engine and optimizers.

Nothing in the user's code changes, and nothing of theirs is held. Two things are done in an unusual
way, for the sake of the promise that a traced run has the same exceptions and costs the same:

- Only the *outermost* module call is of interest. While it runs, the global hook is taken out, so
  that the hundreds of calls inside it take torch's fast path.
- torch has no hook around backward(). `_engine_run_backward` asks its logger for a level, and may
  call `_register_logging_hooks_on_whole_graph` before and what that returned after the engine runs:
  these two names are lent. A wrapper would put a frame of nbmem into every traceback of a failing
  backward. https://github.com/pytorch/pytorch/blob/v2.13.0/torch/autograd/graph.py#L846
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Protocol

from nbmem.probes.cuda import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Listener(Protocol):
    """Who is told. Its methods must not raise; they hold nothing that they are given."""

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

    def zero_grad_begins(self) -> None:
        """zero_grad() of an optimizer or a module begins."""

    def zero_grad_ends(self) -> None:
        """zero_grad() has ended."""


class TrainingHooks:
    """Puts the hooks in, and takes every one of them out again."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._undo: list[Callable[[], None]] = []
        self._global_pre: Any = None
        self._backward_depth = 0
        self._zero_depth = threading.local()

    def install(self) -> None:
        """Begin to tell the listener. Needs torch; parts that this torch lacks stay out."""
        torch: Any = import_torch()
        if torch is None or self._undo:
            return
        self._arm()
        self._undo.append(self._disarm)
        self._lend_engine_log(torch.autograd.graph)
        optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name
        for register, tell in (
            ("register_optimizer_step_pre_hook", self._step_begins),
            ("register_optimizer_step_post_hook", self._step_ends),
        ):
            if hasattr(optimizers, register):
                handle = getattr(optimizers, register)(tell)
                self._undo.append(handle.remove)
        self._wrap_zero_grad(torch.optim.Optimizer)
        self._wrap_zero_grad(torch.nn.Module)

    def remove(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            self._undo.pop()()

    # --- optimizers

    def _step_begins(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        # args[0] is the optimizer again; Lightning and LBFGS give step() a closure.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._listener.optimizer_begins(optimizer, closure=closure is not None)

    def _step_ends(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._listener.optimizer_ends(optimizer)

    # --- the outermost module call

    def _arm(self) -> None:
        torch: Any = import_torch()
        if self._global_pre is None:
            register = torch.nn.modules.module.register_module_forward_pre_hook
            self._global_pre = register(self._enter)

    def _disarm(self) -> None:
        if self._global_pre is not None:
            self._global_pre.remove()
            self._global_pre = None

    def _enter(self, module: Any, _args: tuple[Any, ...]) -> None:
        torch: Any = import_torch()
        if torch.compiler.is_compiling() or torch._C._get_tracing_state():  # noqa: SLF001
            return
        in_backward = self._backward_depth > 0
        grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()

        def leave(
            module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], _result: Any
        ) -> None:
            handle.remove()
            if self._undo:
                self._arm()
            self._listener.forward_ends(module, args, kwargs, in_backward=in_backward)

        handle = module.register_forward_hook(leave, with_kwargs=True, always_call=True)
        self._disarm()
        self._listener.forward_begins(module, grad=grad, in_backward=in_backward)

    def rearm(self) -> None:
        """Listen for the next module call, also if the last one was interrupted (Ctrl-C)."""
        self._backward_depth = 0
        if self._undo:
            self._arm()

    # --- backward

    def _lend_engine_log(self, graph: Any) -> None:
        if not all(hasattr(graph, n) for n in ("log", "_register_logging_hooks_on_whole_graph")):
            return
        log, register = graph.log, graph._register_logging_hooks_on_whole_graph  # noqa: SLF001

        def begin(outputs: Any) -> Callable[[], None]:
            unregister = register(outputs) if log.getEffectiveLevel() <= logging.DEBUG else None
            self._backward_depth += 1
            if self._backward_depth == 1:
                self._listener.backward_begins(outputs)

            def end() -> None:
                self._backward_depth = max(0, self._backward_depth - 1)
                if self._backward_depth == 0:
                    self._listener.backward_ends()
                if unregister is not None:
                    unregister()

            return end

        graph.log = _AlwaysDebug(log)
        graph._register_logging_hooks_on_whole_graph = begin  # noqa: SLF001

        def give_back() -> None:
            graph.log = log
            graph._register_logging_hooks_on_whole_graph = register  # noqa: SLF001

        self._undo.append(give_back)

    # --- zero_grad, which has no hook of its own

    def _wrap_zero_grad(self, owner: Any) -> None:
        original = owner.__dict__["zero_grad"]

        @functools.wraps(original)
        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._zero_depth, "value", 0)
            self._zero_depth.value = depth + 1
            if depth == 0:
                self._listener.zero_grad_begins()
            try:
                return original(*args, **kwargs)
            finally:
                self._zero_depth.value = depth
                if depth == 0:
                    self._listener.zero_grad_ends()

        owner.zero_grad = zero_grad
        self._undo.append(functools.partial(setattr, owner, "zero_grad", original))


class _AlwaysDebug:
    """A logger as it was, but for its level: the engine then asks for its logging hooks."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def getEffectiveLevel(self) -> int:  # noqa: N802 - the logger's own name
        return logging.DEBUG

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
