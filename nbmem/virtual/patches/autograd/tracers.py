"""Tracing of programs: what tracers load, compare and see as device.

A fake tensor of a card has its device in Python alone. C++ gets the device of a virtual tensor
instead: for "cuda" the engine and every view would search for a driver, and end
the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.jit import _trace

from nbmem.virtual.devices import CUDA, LAZY, is_virtual
from nbmem.virtual.patches.patcher import Patch
from nbmem.virtual.patches.tensor_api.transfers import card_device, is_card

_DEVICE = torch.ops.prim.device.default
_IS_CLOSE = torch.isclose


@contextlib.contextmanager
def _replaced(owner: Any, name: str, function: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _close(*args: Any, **kwargs: Any) -> torch.Tensor:
    found = _IS_CLOSE(*args, **kwargs)
    return found.fill_(True) if is_virtual(found) else found


def _cpp_device(device: Any) -> Any:
    return LAZY[device.index or 0] if device.type == "cuda" else device


def tracing_patches() -> list[Patch]:
    """Return patches of torch.jit's tracer and of fake tensors.

    They change what a trace compares and loads, and the device of a fake tensor in C++.
    """
    fake: Any = fake_tensor.FakeTensor
    original_dispatch = fake.__dict__["__torch_dispatch__"].__func__
    handlers: Any = fake_tensor._DISPATCH_META_HANDLERS
    cpp_device = handlers[_DEVICE]

    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = original_dispatch(cls, func, types, args, kwargs or {})
        return _cpp_device(found) if func is _DEVICE else found

    mode: Any = fake_tensor.FakeTensorMode
    original_mode = mode.dispatch

    def in_mode(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # C++ makes a number's tensor on the device that it has for the others.
        device = (kwargs or {}).get("device")
        if device is not None and device.type == "lazy":
            kwargs = {**kwargs, "device": CUDA[device.index]}
        return original_mode(self, func, types, args, kwargs or {})

    original_load = torch.jit.load

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        where = card_device(map_location)
        if not is_card(where):
            return original_load(f, map_location, *args, **kwargs)
        return original_load(f, "cpu", *args, **kwargs).to(where)

    original_check = _trace._check_trace

    def check(*args: Any, **kwargs: Any) -> Any:
        # It runs what was traced again, which takes memory, and compares: texts with values in
        # them, and values, which are the same.
        with (
            _replaced(torch._C, "_jit_pass_canonicalize", lambda *_args: torch._C.Graph()),
            _replaced(torch, "isclose", _close),
        ):
            return original_check(*args, **kwargs)

    return [
        Patch(torch.jit, "load", load),
        Patch(_trace, "_check_trace", check),
        Patch(mode, "dispatch", in_mode),
        Patch(fake, "__torch_dispatch__", classmethod(dispatch)),
        Patch(
            fake_tensor,
            "_DISPATCH_META_HANDLERS",
            {**handlers, _DEVICE: lambda args: _cpp_device(cpp_device(args))},
        ),
    ]
