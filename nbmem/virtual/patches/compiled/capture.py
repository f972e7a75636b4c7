"""Capture by Dynamo and AOTAutograd while a virtual card is active.

A virtual tensor becomes a fake one first, so the mode of the cards is off meanwhile. The factories
that replace torch's are set aside, too: a graph must name torch's own. They are replaced again
before Dynamo writes its guards, which are checked while they are replaced.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nbmem.virtual.devices import CPU, CUDA
from nbmem.virtual.operators.convolution.layout import layout
from nbmem.virtual.patches.patcher import Patch, Patches

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode
    from nbmem.virtual.hardware.machine import Machine

_KEPT = frozenset(
    {"Stream", "Event", "Generator", "_use_cudnn_rnn_flatten_weight", "clear_autocast_cache"}
)
"""Names of torch that do not belong in a graph, or have no meaning without a card."""
_Device = type(CPU)
_original_unset: Any = getattr(proxy_tensor, "unset_fake_temporarily", None)


class Capture:
    """State of a capture, and what is set aside meanwhile.

    The state is one for each thread.
    """

    def __init__(self, mode: CardMode, machine: Machine, patches: Patches) -> None:
        self._mode = mode
        self._machine = machine
        self._patches = patches
        self._of_thread = threading.local()

    @property
    def _follows(self) -> bool:
        return getattr(self._of_thread, "follows", False)

    @contextlib.contextmanager
    def without_mode(self) -> Iterator[bool]:
        """Turn the mode of the cards off during a `with` block.

        Yields False, and leaves the mode on, if another mode is above it.
        """
        mode = self._mode
        on_top = torch._C._len_torch_dispatch_stack() and _get_current_dispatch_mode() is mode
        if not on_top:
            yield False
            return
        mode.__exit__(None, None, None)
        try:
            yield True
        finally:
            mode.__enter__()

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Restore torch's own functions during a `with` block."""
        if self._follows:
            yield
            return
        self._of_thread.follows = True
        places = (torch, torch.nn.init, torch.nested, torch._C._nn)
        try:
            with self._patches.set_aside(places, keep=_KEPT):
                yield
        finally:
            self._of_thread.follows = False

    @contextlib.contextmanager
    def _constants(self) -> Iterator[None]:
        """Let a tracer compute constants, those on the card in its mode."""
        with _original_unset(), self._mode if self._follows else contextlib.nullcontext():
            yield

    def _state_of_optimizer(self) -> Any:
        """Return a call_method() that makes an optimizer's state on the card.

        Dynamo lets an optimizer make its state for real (`_init_group`).
        """
        mode = self._mode
        original_call: Any = OptimizerVariable.call_method

        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            with mode if name == "_init_group" else contextlib.nullcontext():
                return original_call(self, tx, name, args, kwargs)

        return call_method

    def _context_of_fakes(self) -> list[Patch]:
        """Return a patch of the first fake tensor's allocation on a card.

        Up to torch 2.11 the first fake tensor of a card takes one element there. Empty for later
        releases.
        """
        machine = self._machine
        original_init: Any = fake_tensor.init_gpu_context

        @functools.cache
        def init(device: torch.device) -> None:
            gpu = machine.gpu(device)
            gpu.give(gpu.take(torch.float32.itemsize))

        # Later releases compare a device with a string, so they do not call `is_available`.
        asks = "is_available" in original_init.__wrapped__.__code__.co_names
        return [Patch(fake_tensor, "init_gpu_context", init)] if asks else []

    def patches(self) -> list[Patch]:
        """Return patches of tracing that apply while the card is active."""
        capture = self
        original_run: Any = InstructionTranslator.run
        original_avoids: Any = FakeTensorMode.avoid_device_init

        def run(self: Any) -> Any:
            with capture.following():
                return original_run(self)

        def avoids(self: Any) -> Any:
            return capture._follows or original_avoids.fget(self)

        return [
            Patch(InstructionTranslator, "run", run),
            # Else torch makes constants on the card while it traces, with C++ code.
            Patch(FakeTensorMode, "avoid_device_init", property(avoids)),
            *self._context_of_fakes(),
            _devices(),
            Patch(proxy_tensor, "unset_fake_temporarily", self._constants),
            Patch(OptimizerVariable, "call_method", self._state_of_optimizer()),
            Patch(torch._C, "_conv_determine_backend_memory_format", _format_of_convolution),
        ]


def _devices() -> Patch:
    """Return a patch that writes the card as device into graphs.

    C++ would write its own device, `lazy`.
    """
    proxy: Any = proxy_tensor.ProxyTorchDispatchMode
    original_dispatch = proxy.__torch_dispatch__

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: _of_card(value) for name, value in (kwargs or {}).items()}
        return original_dispatch(self, func, types, tuple([_of_card(arg) for arg in args]), kwargs)

    return Patch(proxy, "__torch_dispatch__", dispatch)


def _of_card(value: Any) -> Any:
    return CUDA[value.index or 0] if type(value) is _Device and value.type == "lazy" else value


_original_format: Any = getattr(torch._C, "_conv_determine_backend_memory_format", None)


def _format_of_convolution(source: torch.Tensor, weight: torch.Tensor, backend: Any) -> Any:
    """Return the memory format of a convolution on the card.

    It is that of cuDNN, which a build without CUDA does not have. Other devices use torch's
    own function.
    """
    if source.device.type == "cuda":
        return layout(source, weight)
    return _original_format(source, weight, backend)
