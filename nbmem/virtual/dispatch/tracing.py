"""Programs that trace programs: FakeTensorMode, make_fx, torch.export, torch.jit.trace.

A fake tensor of a card has its device in Python alone. Where C++ asks for it, it hears that of a
virtual tensor: for "cuda" the engine and every view would look for a driver, and end the process.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import _C
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRACER = "Tracer"
_CONVOLUTION = torch.ops.aten.convolution.default
_FAKE, _PROXY = _C._TorchDispatchModeKey.FAKE, _C._TorchDispatchModeKey.PROXY


class Untraced:
    """While entered, torch.jit.trace writes nothing down: sizes are numbers, not values of it."""

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
    """Below a kernel of the tracer's own torch refuses to touch its state: not for a moment."""
    below = _C._dispatch_tls_is_dispatch_key_excluded(_TRACER)
    _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
    try:
        yield
    finally:
        _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, below)


def untraced(kernel: Any) -> Any:
    """Keep a kernel that torch calls while it traces out of what is written down."""

    @functools.wraps(kernel)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        state = _C._get_tracing_state()
        if state is None:
            return kernel(*args, **kwargs)
        with Untraced(state):
            return kernel(*args, **kwargs)

    return quiet


def untraced_call(run: Any) -> Any:
    """Keep a mode's `run(mode, func, args, kwargs)` out, but for what torch leaves to it.

    torch.jit.trace writes no convolution down, but what a convolution calls on every device.
    """

    @functools.wraps(run)
    def quiet(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        state = _C._get_tracing_state()
        if state is None:
            return run(mode, func, args, kwargs)
        with Untraced(state):
            result = run(mode, func, args, kwargs)
        if func is _CONVOLUTION:
            with _tracer():
                _write_convolution(state.graph(), args, result)
        return result

    return quiet


def with_tensors(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make tensors of numbers that stand for them: so a mode hears a program's constants.

    What simplifies a TorchScript program compares its constants, each of which was a number once.
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
    """Whether a program is followed with fake tensors."""
    return _C._get_dispatch_mode(_FAKE) is not None


def passed_on(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """What a tracing mode makes of a call; NotImplemented where none is on.

    Torch asks its own tracing modes after all others. Fake tensors never reach the card; what
    make_fx traces for real does, after it was written down.
    """
    if is_faked():
        return func(*args, **kwargs)
    proxy = _C._get_dispatch_mode(_PROXY)
    if proxy is None:
        return NotImplemented
    with mode, disable_proxy_modes_tracing():
        return proxy.__torch_dispatch__(func, types, args, kwargs)
