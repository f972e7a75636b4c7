"""Support for FakeTensorMode, make_fx, torch.export and torch.jit.trace.

A fake tensor of a card has its device in Python alone. C++ gets the device of a virtual
tensor instead. For "cuda" the engine and every view would search for a driver and end the
process.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import _C
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

_TRACER = "Tracer"
_CONVOLUTION = torch.ops.aten.convolution.default
_FAKE, _PROXY = _C._TorchDispatchModeKey.FAKE, _C._TorchDispatchModeKey.PROXY


class JitTracePaused:
    """A context manager that pauses torch.jit.trace.

    Sizes are then numbers, not values of the trace.
    """

    def __init__(self, state: Any) -> None:
        self._state = state

    def __enter__(self) -> None:
        _set_state(None)

    def __exit__(self, *exc: object) -> None:
        _set_state(self._state)


def _set_state(state: Any) -> None:
    with _tracer():
        _C._set_tracing_state(state)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _tracer() -> Iterator[None]:
    """Include the tracer's dispatch key for a moment.

    Below one of the tracer's own kernels the key is excluded, and torch refuses to change its
    state.
    """
    below = _C._dispatch_tls_is_dispatch_key_excluded(_TRACER)
    _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
    try:
        yield
    finally:
        _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, below)


def without_jit_trace(kernel: Any) -> Any:
    """Wrap a kernel so that torch.jit.trace does not record its calls."""

    @functools.wraps(kernel)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        state = _C._get_tracing_state()
        if state is None:
            return kernel(*args, **kwargs)
        with JitTracePaused(state):
            return kernel(*args, **kwargs)

    return quiet


def run_without_jit_trace(run: Any) -> Any:
    """Wrap a mode's `run` so that torch.jit.trace does not record it.

    It has the arguments `(mode, func, args, kwargs)`.

    torch.jit.trace does not record a convolution, but `_convolution`, which it calls on every
    device. So that call is recorded here.
    """

    @functools.wraps(run)
    def quiet(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        state = _C._get_tracing_state()
        if state is None:
            return run(mode, func, args, kwargs)
        with JitTracePaused(state):
            result = run(mode, func, args, kwargs)
        if func is _CONVOLUTION:
            with _tracer():
                _write_convolution(state.graph(), args, result)
        return result

    return quiet


def with_tensors(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Turn numbers that stand for tensors into tensors.

    A mode then receives a program's constants. Passes that simplify TorchScript compare constants,
    each of which was a number once.
    """
    wanted = func._schema.arguments
    return tuple(
        torch.scalar_tensor(arg, dtype=torch.as_tensor(arg).dtype)
        if isinstance(arg, (bool, int, float, complex)) and one.type.kind() == "TensorType"
        else arg
        for arg, one in zip(args, wanted, strict=False)
    )


def _write_convolution(graph: Any, args: Any, result: torch.Tensor) -> None:
    cudnn = torch.backends.cudnn
    flags = (cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32)
    trace: Any = _C._get_value_trace  # type: ignore[attr-defined]
    values = [
        trace(arg) if isinstance(arg, torch.Tensor) else graph.insertConstant(arg)
        for arg in (*args, *flags)
    ]
    node = graph.create("aten::_convolution", values, 1)
    graph.insertNode(node)
    node.output().inferTypeFrom(result)
    _C._set_value_trace(result, node.output())  # type: ignore[attr-defined]


def is_faked() -> bool:
    """Return True while FakeTensorMode is active."""
    return _C._get_dispatch_mode(_FAKE) is not None


def run_in_tracing_mode(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Run a call in the active tracing mode; NotImplemented without one.

    torch runs its own tracing modes after all others. Fake tensors never reach the card. What
    make_fx traces for real does, after it was recorded.
    """
    if is_faked():
        return func(*args, **kwargs)
    proxy = _C._get_dispatch_mode(_PROXY)
    if proxy is None:
        return NotImplemented
    with mode, disable_proxy_modes_tracing():
        return proxy.__torch_dispatch__(func, types, args, kwargs)
