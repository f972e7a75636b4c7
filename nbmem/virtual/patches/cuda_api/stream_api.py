"""Streams, events, graphs and memory pools, as torch.cuda names them.

torch.Stream and torch.Event serve every kind of device; for a card they make the card's.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.hardware.graphs import Pools, VirtualGraph, VirtualMemPool, pool_handle
from nbmem.virtual.hardware.streams import VirtualEvent, VirtualExternalStream, VirtualStream
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.patches.tensor_api.transfers import card_device, is_card

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine


class _Kind(type):
    """Metaclass of torch.Stream, torch.Event and the cards' own classes.

    The cards' classes are subclasses of the two, as in torch.

    Attributes:
        original: Torch's own class.
        make: Creates an object of the card's class; None in the classes of the card.
    """

    original: Any
    make: Any = None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an object of the cards for a card, else one of torch's.

        No device means a card.
        """
        if cls.make is None:
            return super().__call__(*args, **kwargs)
        first, *rest = args or (kwargs.pop("device", None),)
        where = card_device("cuda" if first is None else first)
        made = cls.make if is_card(where) else cls.original
        return made(where, *rest, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (
            cls.make is not None and isinstance(instance, cls.original)
        )


def make_card_class(name: str, base: type, machine: Any) -> Any:
    """Return the cards' class of streams or events.

    It is a subclass of the class that stands for torch's.

    Args:
        name: "Stream" or "Event".
        base: What the class does.
        machine: The cards.
    """
    original = getattr(torch, name, None)
    if original is None:  # an old release
        return type(base.__name__, (base,), {"machine": machine})
    kind = _Kind(name, (), {"__module__": "torch", "original": original, "make": None})
    card = _Kind(base.__name__, (base, kind), {"machine": machine})
    card.make = None
    kind.make = card if name == "Stream" else _event_maker(card)
    return card


def _event_maker(event: Any) -> Any:
    def make_event(_device: Any, *, enable_timing: bool = False, **options: Any) -> Any:
        return event(enable_timing, **options)

    return make_event


def generic_patches(*classes: Any) -> list[Patch]:
    """Return patches of torch.Stream and torch.Event."""
    found = [base for kind in classes for base in kind.__mro__ if isinstance(base, _Kind)]
    return patches_of(torch, {base.__name__: base for base in found if base.make is not None})


def stream_functions(machine: Machine) -> dict[str, Any]:
    """Return the functions of torch._C for streams, graphs and pools."""

    def current_stream(device: int | None = None) -> tuple[int, int, int]:
        gpu = machine.gpu(device)
        return gpu.stream.handle, gpu.index, 1

    def set_stream(stream_id: int, device_index: int = 0, device_type: int = 1) -> None:
        del device_type
        machine.select(device_index)
        machine.current.stream.handle = stream_id

    def pools(device: int) -> Pools:
        return machine.gpu(device).pools

    def by_thread(device: int, pool: Any) -> None:
        pools(device).begin(pool, thread=get_ident())

    def by_stream(device: int, pool: Any) -> None:
        pools(device).begin(pool, streams={machine.gpu(device).stream.handle})

    def is_capturing() -> bool:
        return machine.current.stream.handle in machine.current.capture.streams

    def sleep(cycles: int) -> None:
        machine.current.stream_timing.sleep(machine.current.stream.handle, cycles)

    return {
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getCurrentRawStream": lambda device=None: machine.gpu(device).stream.handle,
        "_cuda_getDefaultStream": lambda device=None: (0, machine.gpu(device).index, 1),
        "_cuda_setStream": set_stream,
        "_cuda_sleep": sleep,
        "_cuda_isCurrentStreamCapturing": is_capturing,
        "_graph_pool_handle": pool_handle,
        "_cuda_beginAllocateToPool": lambda device, pool: pools(device).begin(pool),
        "_cuda_beginAllocateCurrentThreadToPool": by_thread,
        "_cuda_beginAllocateCurrentStreamToPool": by_stream,
        "_cuda_endAllocateToPool": lambda device, pool: pools(device).end(pool),
        "_cuda_endAllocateCurrentStreamToPool": lambda device, pool: pools(device).end(pool),
        "_cuda_releasePool": lambda device, pool: pools(device).release(pool),
        "_cuda_getStreamFromExternal": lambda pointer, device: (
            pointer,
            machine.gpu(device).index,
            1,
        ),
        "_cuda_checkPoolLiveAllocations": lambda device, pool, addresses: (
            pools(device).live(pool) == set(addresses)
        ),
    }


def stream_patches(machine: Machine, functions: dict[str, Any]) -> list[Patch]:
    """Return patches of torch.cuda's classes and their functions."""
    cuda = torch.cuda
    stream = make_card_class("Stream", VirtualStream, machine)
    event = make_card_class("Event", VirtualEvent, machine)
    external = type(stream)("ExternalStream", (VirtualExternalStream, stream), {})
    graph = type("CUDAGraph", (VirtualGraph,), {"machine": machine})
    pool = type("MemPool", (VirtualMemPool,), {"machine": machine})

    def current_stream(device: Any = None) -> Any:
        gpu = machine.gpu(device)
        return stream(gpu.index, stream_id=gpu.stream.handle)

    def set_stream(new: Any) -> None:
        if new is not None:
            functions["_cuda_setStream"](new.cuda_stream, new.device_index)

    classes = {"Stream": stream, "ExternalStream": external, "Event": event}
    answers: dict[str, Any] = {
        **classes,
        "CUDAGraph": graph,
        "MemPool": pool,
        "current_stream": current_stream,
        "default_stream": lambda device=None: stream(machine.gpu(device).index, stream_id=0),
        "set_stream": set_stream,
    }
    of_graphs = ("_cuda_isCurrentStreamCapturing", "_graph_pool_handle")
    return [
        *patches_of(cuda, answers),
        *patches_of(cuda.streams, classes),
        *patches_of(cuda.graphs, {"CUDAGraph": graph, **{n: functions[n] for n in of_graphs}}),
        *patches_of(cuda.memory, {"MemPool": pool}),
        *generic_patches(stream, event),
    ]
