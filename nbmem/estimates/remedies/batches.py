"""Smaller batches whose gradients add up to the same step, and an allocator that maps pages."""

from __future__ import annotations

from typing import ClassVar

from nbmem.estimates.remedies.base import Remedy


class MicroBatches(Remedy):
    """Two passes make one step.

    The program runs with half its batch, and every second zero_grad() is left out: gradients wait
    while the next micro-batch goes forward, as they do under accumulation.
    """

    key = "micro2"
    title = "2 micro-batches, gradients accumulated"
    price = "twice as many kernels, each with half the work; BatchNorm sees half the batch"
    code = (
        "for x, y in zip(x.chunk(2), y.chunk(2)):\n"
        "    (loss_of(model(x), y) / 2).backward()\n"
        "optimizer.step(); optimizer.zero_grad()"
    )
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
    title = "4 micro-batches, gradients accumulated"
    price = "four times as many kernels, each with a quarter of the work; BatchNorm sees a quarter"
    code = MicroBatches.code.replace("2", "4")
    parts: ClassVar[int] = 4


class Expandable(Remedy):
    """Segments that grow instead of new ones."""

    key = "expandable"
    title = "expandable segments"
    price = "none on Linux; set before torch touches the card"
    code = 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"'
    conf = "expandable_segments:True"

    def prepare(self) -> None:
        """It is a setting of the card, in force already."""
        self.applied += 1
