"""Streams whose work goes into a CUDA graph, and what must not be done on them meanwhile.

A stream that waits for one of them joins the capture. Whoever waits for such a stream on the host
breaks it, as CUDA says; what torch checks before it copies leaves it as it is.
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


class Capturing:
    """The capture that is going on on a card, if there is one.

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
        """A capture begins on a stream, into the graph of those seeds."""
        self.streams = {stream}
        self._seeds = seeds
        self._broken = False

    def join(self, stream: int, waited_for: int) -> None:
        """Later work of a stream comes after that of another one."""
        if waited_for in self.streams:
            self.streams.add(stream)

    def end(self) -> None:
        """The capture is over.

        Raises:
            RuntimeError: It was broken.
        """
        self.streams, self._seeds = set(), None
        if self._broken:
            raise _Error(_BROKEN)

    def draw(self, stream: int, generator: Any) -> None:
        """Work of a stream draws from a generator; None is the card's default one."""
        if stream in self.streams and self._seeds is not None:
            self._seeds.draw(generator)

    def check_wait(self, stream: int) -> None:
        """The host waits for a stream.

        Raises:
            RuntimeError: Its work is being captured.
        """
        if stream in self.streams:
            self._broken = True
            raise _Error(_WAIT)

    def check_copy(self, stream: int, *, pinned: bool, waits: bool) -> None:
        """Something is copied from or to the CPU.

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
