"""Streams and events of the virtual card.

Queued work is complete at the next synchronization.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from nbmem.core.errors import UsageError
from nbmem.virtual.devices import CUDA

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.hardware.machine import Machine

_HANDLES = itertools.count(0x5_5550_0000_0000, 0x100)
ONE_PROCESS = (
    "A virtual GPU is in one process alone: its memory and its events cannot be shared with "
    "another process, as CUDA IPC does. Share CPU tensors, and move them in the process that "
    "works on them."
)


class VirtualStream:
    """The stand-in for torch.cuda.Stream while a virtual card is active.

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
        self._before: list[tuple[int, int]] = []  # device and stream, of each `with` around

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        """Return the least and the greatest priority."""
        return 0, -5

    def synchronize(self) -> None:
        """Wait for the stream."""
        self.gpu.capture.check_wait(self.cuda_stream)
        self.gpu.synchronize(self.cuda_stream)

    def query(self) -> bool:
        """Return whether all work of the stream is done."""
        timing = self.gpu.stream_timing
        if timing.finish_ns(self.cuda_stream) > timing.now_ns():
            return False
        self.gpu.synchronize(self.cuda_stream)
        return True

    def is_capturing(self) -> bool:
        """Return whether the stream is captured into a CUDA graph."""
        return self.cuda_stream in self.gpu.capture.streams

    def wait_event(self, event: Any) -> None:
        """Let later work of the stream wait for an event."""
        self.gpu.capture.join(self.cuda_stream, event._stream)
        if not event.query():
            self.gpu.stream_timing.delay_until(self.cuda_stream, event.t_ns)

    def wait_stream(self, stream: Any) -> None:
        """Let later work of the stream wait for another stream."""
        self.gpu.capture.join(self.cuda_stream, stream.cuda_stream)
        self.gpu.stream_timing.delay_until(
            self.cuda_stream, stream.gpu.stream_timing.finish_ns(stream.cuda_stream)
        )

    def record_event(self, event: Any = None) -> VirtualEvent:
        """Record an event on the stream and return it; None makes a new one."""
        event = torch.cuda.Event() if event is None else event
        event.record(self)
        return event

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

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
        self._before.append((self.machine.select(self.device_index), self.gpu.stream.handle))
        self.gpu.stream.handle = self.cuda_stream
        return self

    def __exit__(self, *exc: object) -> None:
        device, self.gpu.stream.handle = self._before.pop()
        self.machine.select(device, touch=False)


class VirtualExternalStream(VirtualStream):
    """The stand-in for torch.cuda.ExternalStream, made from a raw handle."""

    def __init__(self, stream_ptr: int, device: Any = None, **_rest: Any) -> None:
        super().__init__(device, stream_id=int(stream_ptr))


class VirtualEvent:
    """The stand-in for torch.cuda.Event; it measures time on the host.

    Attributes:
        cuda_event: The event's handle, 0 until it is recorded.
        t_ns: The time at which the stream reaches the event, by its clock; None until recorded.
    """

    machine: Machine

    def __init__(
        self,
        enable_timing: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        blocking: bool = False,  # noqa: FBT001, FBT002
        interprocess: bool = False,  # noqa: FBT001, FBT002
        **_rest: Any,
    ) -> None:
        del blocking, interprocess
        self.cuda_event = 0
        self.t_ns: int | None = None
        self._timed = enable_timing
        self._gpu: VirtualGPU | None = None
        self._stream = 0

    @property
    def event_id(self) -> int:
        """The event's handle, under torch.Event's name for it."""
        return self.cuda_event

    def record(self, stream: Any = None) -> None:
        """Record the event on a stream; None: on the current one."""
        gpu = self._gpu = self.machine.current if stream is None else stream.gpu
        self._stream = gpu.stream.handle if stream is None else stream.cuda_stream
        self.cuda_event = self.cuda_event or next(_HANDLES)
        self.t_ns = gpu.stream_timing.finish_ns(self._stream)

    @property
    def device(self) -> Any:
        """The card that recorded the event; before that the current card."""
        return CUDA[(self._gpu or self.machine.current).index]

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for the event; None: the current one."""
        (torch.cuda.current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Return whether the event is complete; True if it was never recorded."""
        if self._gpu is None or self.t_ns is None:
            return True
        return self.t_ns <= self._gpu.stream_timing.now_ns()

    def synchronize(self) -> None:
        """Wait for the work of the stream up to the event."""
        (self._gpu or self.machine.current).synchronize(until=self.t_ns or 0)

    def elapsed_time(self, end_event: VirtualEvent) -> float:
        """Return the milliseconds between two events, by this machine's clock.

        They are no estimate of a card's time. The least is a nanosecond.

        Raises:
            ValueError: One of them measures no time or was never recorded.
        """
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.t_ns is None or end_event.t_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return max(1, end_event.t_ns - self.t_ns) / 1e6

    def ipc_handle(self) -> Any:
        """Refuse to share the event with another process.

        Raises:
            UsageError: Always.
        """
        raise UsageError(ONE_PROCESS)

    def __repr__(self) -> str:
        state = f"{self.cuda_event:#x}" if self.cuda_event else "uninitialized"
        return f"<torch.cuda.Event {state}>"
