"""Programs that trace programs: FakeTensorMode, make_fx, torch.export, torch.jit.trace.

A fake tensor of a card has its device in Python alone. Where C++ asks for it, it hears that of a
virtual tensor: for "cuda" the engine and every view would look for a driver, and end the process.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import _C
from torch._subclasses import fake_tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from nbmem.virtual.install.patches import Patch
from nbmem.virtual.tensors import LAZY

_DEVICE = torch.ops.prim.device.default
_TRACER = "Tracer"
_FAKE, _PROXY = _C._TorchDispatchModeKey.FAKE, _C._TorchDispatchModeKey.PROXY


def _seen_by_cpp(device: Any) -> Any:
    return LAZY[device.index or 0] if device.type == "cuda" else device


class Untraced:
    """While entered, torch.jit.trace writes nothing down: sizes are numbers, not values of it."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __enter__(self) -> None:
        _set_state(None)

    def __exit__(self, *exc: object) -> None:
        _set_state(self._state)


def _set_state(state: Any) -> None:
    """Below a kernel of the tracer's own torch refuses to change its state: not for a moment."""
    below = _C._dispatch_tls_is_dispatch_key_excluded(_TRACER)
    _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
    _C._set_tracing_state(state)  # type: ignore[attr-defined]
    _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, below)


def untraced(kernel: Any) -> Any:
    """The same for a kernel that torch calls while it traces."""

    @functools.wraps(kernel)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        state = _C._get_tracing_state()
        if state is None:
            return kernel(*args, **kwargs)
        with Untraced(state):
            return kernel(*args, **kwargs)

    return quiet


def tracing_patches() -> list[Patch]:
    """The two places at which C++ learns a fake tensor's device."""
    fake: Any = fake_tensor.FakeTensor
    true_dispatch = fake.__dict__["__torch_dispatch__"].__func__
    handlers: Any = fake_tensor._DISPATCH_META_HANDLERS
    true_device = handlers[_DEVICE]

    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = true_dispatch(cls, func, types, args, kwargs or {})
        return _seen_by_cpp(found) if func is _DEVICE else found

    return [
        Patch(fake, "__torch_dispatch__", classmethod(dispatch)),
        Patch(
            fake_tensor,
            "_DISPATCH_META_HANDLERS",
            {**handlers, _DEVICE: lambda args: _seen_by_cpp(true_device(args))},
        ),
    ]


def passed_on(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """What a tracing mode makes of a call; NotImplemented where none is on.

    Torch asks its own tracing modes after all others. Fake tensors never reach the card; what
    make_fx traces for real does, after it was written down.
    """
    if _C._get_dispatch_mode(_FAKE) is not None:
        return func(*args, **kwargs)
    proxy = _C._get_dispatch_mode(_PROXY)
    if proxy is None:
        return NotImplemented
    with mode, disable_proxy_modes_tracing():
        return proxy.__torch_dispatch__(func, types, args, kwargs)
