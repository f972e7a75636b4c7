"""Observe out-of-memory errors when the allocation request fails.

Errors that the program catches are observed as well. torch calls an observer before it raises. Only
texts and figures are retained: a retained frame or tensor would be the very leak for which
out-of-memory errors are known.

The exception itself may be caught, replaced or raised in a thread. The observer is called earlier,
while the line and the layer are still running. Its position in the events is the allocator's own
OOM entry.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from nbmem.capture.hooks.image_decoding import image_decoding
from nbmem.capture.hooks.running_call import CALLS, running_call
from nbmem.capture.interpreter.busy_threads import outwards
from nbmem.capture.interpreter.notebook_cells import number_cell_files
from nbmem.capture.tensors.modules import (
    children_of,
    is_module,
    is_training,
    named_modules,
    own_parameters,
)
from nbmem.capture.tensors.tensors import modules_in
from nbmem.capture.torch_cuda import (
    allocator_backend,
    initialized_torch,
    loaded_torch,
    read_counters,
)
from nbmem.capture.torch_memory.cuda_initialization import on_cuda_initialized
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.entry_points import caller, entry, is_ours
from nbmem.core.runtime.exceptions import traceback_of
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.events import Frame, Stack
from nbmem.core.session.oom import Refusal

if TYPE_CHECKING:
    from nbmem.capture.patches.compilations import OnFault

    Tell = Callable[[Refusal], None]

_T = TypeVar("_T")
_ENGINE = "_engine_run_backward"
_NEAR = 2
"""Steps from a backward node to the parameters that its layer owns (through a transpose)."""

_listeners: list[tuple[Tell, Mapping[str, Any], OnFault]] = []
_attached: WeakSet[Any] = WeakSet()
"""Functions to which an observer was attached. torch cannot detach one. It stays attached once per
process or virtual card, and retains no listener."""


def listen(
    tell: Tell, namespace: Mapping[str, Any], on_fault: OnFault = lambda _part, _err: None
) -> Callable[[], None]:
    """Register a callback for every allocation request that fails.

    Does nothing where torch has no observer for such requests.

    Args:
        tell: Called with each refusal; must not raise.
        namespace: The notebook's names, to name a layer by.
        on_fault: Records a fault of nbmem's own.

    Returns:
        A function that removes the callback.
    """
    listener = (tell, namespace, on_fault)
    _listeners.append(listener)
    attach = _attach_function()
    waits = attach is not None and attach not in _attached
    cancel = on_cuda_initialized(_attach) if waits else None

    def stop() -> None:
        if cancel is not None:
            cancel()
        _listeners[:] = [other for other in _listeners if other is not listener]

    return stop


def place_of(error: BaseException, namespace: Mapping[str, Any]) -> tuple[Stack, str | None]:
    """Return an exception's stack, innermost first, and the running layer.

    Args:
        error: The exception; nothing of it is retained.
        namespace: The notebook's names, to name the layer by.
    """
    frames: list[FrameType] = []
    stack: list[Frame] = []
    traceback = traceback_of(error)
    while traceback is not None:
        frames.append(traceback.tb_frame)
        code = traceback.tb_frame.f_code
        stack.append(Frame(code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    torch: Any = loaded_torch()
    modules = list(_modules(reversed(frames))) if torch is not None else []
    (numbered,) = number_cell_files([tuple(reversed(stack))])
    return numbered, _layer_of_call(modules, namespace)


def _attach_function() -> Any | None:
    return getattr(getattr(loaded_torch(), "_C", None), "_cuda_attach_out_of_memory_observer", None)


def _on_fault(part: str, err: Exception) -> None:
    for _, _, on_fault in tuple(_listeners):
        on_fault(part, err)


@entry("watching for out-of-memory errors", on_fault=_on_fault)
def _attach() -> None:
    attach = _attach_function()
    if attach is None or attach in _attached or allocator_backend() != "native":
        return  # other allocators have no observer, and raise
    _attached.add(attach)
    attach(_refused)


@entry("an out-of-memory error", on_fault=_on_fault)  # an exception here would replace torch's own
def _refused(device: int, wanted: int, capacity: int, free: int) -> None:
    """Report a failed request; torch calls this before it raises.

    It runs in the thread whose request failed.
    """
    for tell, namespace, _ in tuple(_listeners):
        tell(_refusal(device, wanted, capacity, free, namespace))


def _refusal(
    device: int, wanted: int, capacity: int, free: int, namespace: Mapping[str, Any]
) -> Refusal:
    torch: Any = initialized_torch()
    node = torch._C._current_autograd_node()  # noqa: SLF001
    frames = _frames(in_engine=node is not None)
    modules = list(_modules(frames))
    total = int(torch.cuda.get_device_properties(device).total_memory)
    counters = read_counters(device)
    in_main = threading.current_thread() is threading.main_thread() or node is not None
    return Refusal(
        t_ns=CLOCK.time_ns(),
        device=device,
        wanted=wanted,
        free=free,
        limit=capacity if capacity < total else None,
        allocated=None if counters is None else counters.allocated,
        reserved=None if counters is None else counters.reserved,
        stack=_stack_of(frames),
        layer=_layer_of_call(modules, namespace) or _layer_of_node(node, namespace),
        operator=None if node is None else str(node.name()),
        progress=_progress(modules),
        evaluating=bool(modules) and not is_training(modules[-1]) and torch.is_grad_enabled(),
        thread=None if in_main else threading.current_thread().name,
        call=_read(lambda: running_call(frames, modules)),
        decoding=_read(lambda: image_decoding(frames, namespace)),
    )


def _read(read: Callable[[], _T]) -> _T | None:
    """Return what is left of a call, or None where it cannot be read."""
    try:
        return read()
    except Exception as err:  # noqa: BLE001 - the rest of the error is worth more
        reraise_if_from_signal(err)
        _on_fault("what is left of a call", err)
        return None


def _stack_of(frames: Iterable[FrameType]) -> Stack:
    (numbered,) = number_cell_files(
        [tuple(Frame(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames)]
    )
    return numbered


def _frames(*, in_engine: bool) -> list[FrameType]:
    """Return the Python frames of the request, innermost first.

    Backward runs in autograd's own thread, while its caller waits in another one.
    """
    frames = [frame for frame in outwards(caller()) if not is_ours(frame)]
    if in_engine and not any(frame.f_code.co_name == _ENGINE for frame in frames):
        for waiting in sys._current_frames().values():  # noqa: SLF001
            if any(frame.f_code.co_name == _ENGINE for frame in outwards(waiting)):
                frames += outwards(waiting)
                break
    return frames


def _modules(frames: Iterable[FrameType]) -> Iterator[Any]:
    """Yield the modules that are being called, innermost first.

    Only frames of torch's own are read, whose locals are the call's arguments. Before Python 3.13
    the locals of a frame, once read, are retained until it ends.
    """
    for frame in frames:
        if frame.f_code.co_name in CALLS:
            module = frame.f_locals.get("self")
            if is_module(module):
                yield module


def _layer_of_call(modules: list[Any], namespace: Mapping[str, Any]) -> str | None:
    """Return the path of the innermost module from the outermost module.

    None without modules.
    """
    if not modules:
        return None
    inner, outer = modules[0], modules[-1]
    inside = next((name for name, module in named_modules(outer) if module is inner), "")
    root = next((name for name, module in modules_in(namespace) if module is outer), None)
    path = ".".join(part for part in (root or type(outer).__name__, inside) if part)
    return f"{path} ({type(inner).__name__})"


def _progress(modules: list[Any]) -> float | None:
    """Return the fraction of its layers that the outermost module reached.

    It is correct if the layers are called in their order. An innermost module with layers of its
    own, such as an attention, is taken to be half way through them. None without modules, or if it
    is the outermost one.
    """
    if not modules:
        return None
    layers = [id(m) for m in _layers(modules[-1])]
    inside = {id(m) for m in _layers(modules[0])}
    places = [i for i, layer in enumerate(layers) if layer in inside]
    if not places or len(places) == len(layers) > 1:
        return None
    return ((places[0] + places[-1]) / 2 + 1) / len(layers)


def _layers(module: Any) -> list[Any]:
    return [m for _, m in named_modules(module) if next(children_of(m), None) is None]


def _layer_of_node(node: Any, namespace: Mapping[str, Any]) -> str | None:
    """Return the module that owns the parameters near a backward node.

    None if there are no parameters, or if no module owns them.

    Its saved tensors are not read, because that could run a checkpoint's forward again.
    """
    parameters = list(_parameters_near(node, _NEAR))
    for root, outer in modules_in(namespace) if parameters else ():
        for inside, module in named_modules(outer):
            own = tuple(own_parameters(module))
            if any(parameter is found for parameter in own for found in parameters):
                path = f"{root}.{inside}" if inside else root
                return f"{path} ({type(module).__name__})"
    return None


def _parameters_near(node: Any, steps: int) -> Iterator[Any]:
    if node is None:
        return
    variable = getattr(node, "variable", None)
    if variable is not None:
        yield variable
    elif steps:
        for following, _ in node.next_functions:
            yield from _parameters_near(following, steps - 1)
