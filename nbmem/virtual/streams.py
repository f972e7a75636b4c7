"""Streams and events of the virtual card: work on it ends at the next synchronisation."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from nbmem.virtual.tensors import CUDA

if TYPE_CHECKING:
    from nbmem.virtual.device import VirtualGPU
    from nbmem.virtual.machine import Machine

_CLOCK = (time.perf_counter_ns,)  # as it was at the import: a program may freeze the time
_HANDLES = itertools.count(0x5_5550_0000_0000, 0x100)


class VirtualStream:
    """What torch.cuda.Stream is while a virtual card is active.

    Attributes:
        cuda_stream: The handle, 0 for the default stream.
    """

    machine: Machine

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        **_rest: Any,
    ) -> None:
        """Make a stream of a card; `stream_id` names an existing one."""
        self.gpu: VirtualGPU = self.machine.gpu(device if device_index is None else device_index)
        if stream_id is None:
            self.gpu.initialize()
        self.priority = priority
        self.cuda_stream = next(_HANDLES) if stream_id is None else stream_id
        self.stream_id = self.cuda_stream
        self.device_index = self.gpu.index
        self.device_type = 1
        self.device = CUDA[self.gpu.index]

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        """Least and greatest priority."""
        return 0, -5

    def synchronize(self) -> None:
        """Wait for the stream."""
        self.gpu.synchronize()

    def query(self) -> bool:
        """Whether all its work is done."""
        self.gpu.synchronize()
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured."""
        return self.gpu.capturing

    def wait_event(self, event: Any) -> None:
        """Let later work wait for an event."""

    def wait_stream(self, stream: Any) -> None:
        """Let later work wait for another stream."""

    def record_event(self, event: Any = None) -> VirtualEvent:
        """An event at this point of the stream."""
        event = VirtualEvent() if event is None else event
        event.record(self)
        return event

    @property
    def _as_parameter_(self) -> Any:
        import ctypes

        return ctypes.c_void_p(self.cuda_stream)

    def _key(self) -> tuple[int, int]:
        return self.cuda_stream, self.device_index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VirtualStream) and other._key() == self._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __enter__(self) -> VirtualStream:  # noqa: PYI034 - one class, no subclasses
        self._before = self.machine.select(self.device_index), self.gpu.stream.handle
        self.gpu.stream.handle = self.cuda_stream
        return self

    def __exit__(self, *exc: object) -> None:
        device, self.gpu.stream.handle = self._before
        self.machine.select(device, touch=False)


class VirtualEvent:
    """What torch.cuda.Event is while a virtual card is active; it measures the host's time."""

    machine: Machine

    def __init__(
        self,
        enable_timing: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        blocking: bool = False,  # noqa: FBT001, FBT002
        interprocess: bool = False,  # noqa: FBT001, FBT002
        **_rest: Any,
    ) -> None:
        del enable_timing, blocking, interprocess
        self.cuda_event = next(_HANDLES)
        self._gpu: VirtualGPU | None = None
        self._t_ns: int | None = None

    def record(self, stream: Any = None) -> None:
        """Mark this point of a stream, which is the current one if none is named."""
        self._gpu = self.machine.current if stream is None else stream.gpu
        self._t_ns = _CLOCK[0]()

    @property
    def device(self) -> Any:
        """The card that it was recorded on; the current one before."""
        return CUDA[(self._gpu or self.machine.current).index]

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for it."""

    def query(self) -> bool:
        """Whether it has happened."""
        return True

    def synchronize(self) -> None:
        """Wait for it."""
        (self._gpu or self.machine.current).synchronize()

    def elapsed_time(self, end_event: VirtualEvent) -> float:
        """Milliseconds between two events, of this machine and not of the card.

        Raises:
            ValueError: One of them was never recorded.
        """
        if self._t_ns is None or end_event._t_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._t_ns - self._t_ns) / 1e6
