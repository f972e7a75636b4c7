"""Streams that are being captured into a CUDA graph, and their limits.

A stream that waits for a captured stream joins the capture. A wait on the host for such a stream
invalidates the capture, as in CUDA. torch's own check before a copy does not invalidate it.
https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/cuda-graphs.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nbmem.virtual.hardware.graph_seeds import GraphSeeds

_COPY = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
    "pinned. Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
_WAIT = "CUDA error: operation not permitted when stream is capturing"
_BROKEN = "CUDA error: operation failed due to a previous error during capture"
_Error: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)


class StreamCapture:
    """The CUDA graph capture in progress on a card, if there is one.

    Attributes:
        streams: The handles of the streams that take part; none outside of a capture.
    """

    def __init__(self) -> None:
        self.streams: set[int] = set()
        self._broken = False
        self._seeds: GraphSeeds | None = None

    def __bool__(self) -> bool:
        return bool(self.streams)

    def begin(self, stream: int, seeds: GraphSeeds) -> None:
        """Start a capture on a stream, with the generator state of its graph."""
        self.streams = {stream}
        self._seeds = seeds
        self._broken = False

    def join(self, stream: int, waited_for: int) -> None:
        """Add a stream to the capture if it waits for a captured stream."""
        if waited_for in self.streams:
            self.streams.add(stream)

    def end(self) -> None:
        """End the capture.

        Raises:
            RuntimeError: The capture was invalidated.
        """
        self.streams, self._seeds = set(), None
        if self._broken:
            raise _Error(_BROKEN)

    def draw(self, stream: int, generator: Any) -> None:
        """Record that a captured stream draws from a generator.

        None is the card's default generator.
        """
        if stream in self.streams and self._seeds is not None:
            self._seeds.draw(generator)

    def check_wait(self, stream: int) -> None:
        """Refuse that the host waits for a captured stream.

        Raises:
            RuntimeError: Its work is being captured.
        """
        if stream in self.streams:
            self._broken = True
            raise _Error(_WAIT)

    def check_copy(self, stream: int, *, pinned: bool, waits: bool) -> None:
        """Refuse a copy from or to the CPU that a capture does not permit.

        Args:
            stream: On this stream.
            pinned: Whether the memory on the CPU is pinned.
            waits: Whether the host waits for it.

        Raises:
            RuntimeError: A captured stream cannot do so.
        """
        if stream in self.streams:
            if not pinned:
                raise RuntimeError(_COPY)
            if waits:
                self.check_wait(stream)
