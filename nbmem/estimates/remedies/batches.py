"""Smaller batches whose gradients add up to the same step, and an allocator that maps pages."""

from __future__ import annotations

from typing import ClassVar

from nbmem.estimates.remedies.base import BATCH, Remedy

_ACCUMULATED = """\
{batch}  # {parts} of them make one step
(loss / {parts}).backward()
if step % {parts} == {last}:  # step counts from 0
    optimizer.step()
    optimizer.zero_grad()"""


class MicroBatches(Remedy):
    """Two passes make one step.

    The program runs with half its batch, and every second zero_grad() is left out: gradients wait
    while the next micro-batch goes forward, as they do under accumulation.
    """

    key = "micro2"
    title = "2 micro-batches"
    price = "twice as many kernels, each with half the work; BatchNorm sees half the batch"
    code = _ACCUMULATED.format(batch=BATCH, parts=2, last=1)
    group = "batch"
    parts = 2
    nothing = "Nothing is trained in it."

    def __init__(self) -> None:
        super().__init__()
        self._passes = 0

    def before_backward(self) -> None:
        """Count the passes."""
        self._passes += 1
        self.applied += 1

    def zeroing(self) -> bool:
        """Only after the last micro-batch of a step."""
        return self._passes % self.parts == 0


class FourMicroBatches(MicroBatches):
    """Four passes make one step."""

    key = "micro4"
    title = "4 micro-batches"
    price = "four times as many kernels, each with a quarter of the work; BatchNorm sees a quarter"
    code = _ACCUMULATED.format(batch=BATCH, parts=4, last=3)
    parts: ClassVar[int] = 4


class Expandable(Remedy):
    """Segments that grow instead of new ones."""

    key = "expandable"
    title = "expandable segments"
    price = "none on Linux; set before torch touches the card"
    code = 'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"'
    conf = "expandable_segments:True"

    def prepare(self) -> None:
        """It is a setting of the card, in force already."""
        self.applied += 1
