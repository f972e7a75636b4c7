"""Micro-batches with accumulated gradients, and expandable segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from nbmem.estimates.remedies.base import BATCH, Remedy, SavingsModel

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card

_ACCUMULATED = """\
{batch}  # {parts} of them make one step
({own.loss} / {parts}).backward()
if step % {parts} == {last}:  # step counts from 0
    {own.optimizer}.step()
    {own.optimizer}.zero_grad()"""


class MicroBatches(Remedy):
    """Gradient accumulation over two micro-batches per step.

    The program runs with half its batch, and every second zero_grad() is skipped. So gradients stay
    while the next micro-batch goes forward, as they do under accumulation.
    """

    key = "micro2"
    title = "2 micro-batches"
    price = "twice as many kernels, each with half the work; a BatchNorm would see half"
    group = "batch"
    parts = 2
    not_applicable = "Nothing is trained in it."
    acts = SavingsModel(passing=1 / 2, waiting=1 / 2, inputs=1 / 2)

    def __init__(self) -> None:
        super().__init__()
        self._passes = 0

    def before_backward(self) -> None:
        """Count the backward passes."""
        self._passes += 1
        self.applied += 1

    def code_of(self, card: Card) -> str:
        """Return the lines for a smaller batch and a step every few passes."""
        return _ACCUMULATED.format(batch=BATCH, parts=self.parts, last=self.parts - 1, own=self.own)

    def put(self, edit: Edit, card: Card) -> bool:
        """Divide the loss and step every few passes.

        The planner edits the batch.
        """
        return edit.backward_as(f"({self.own.loss} / {self.parts}).backward()") and edit.every(
            self.parts
        )

    def zeroing(self) -> bool:
        """Return True only after the last micro-batch of a step."""
        return self._passes % self.parts == 0


class FourMicroBatches(MicroBatches):
    """Gradient accumulation over four micro-batches per step."""

    key = "micro4"
    title = "4 micro-batches"
    price = (
        "four times as many kernels, each with a quarter of the work; "
        "a BatchNorm would see a quarter"
    )
    parts: ClassVar[int] = 4
    acts: ClassVar[SavingsModel] = SavingsModel(passing=3 / 4, waiting=3 / 4, inputs=3 / 4)


class Expandable(Remedy):
    """Expandable segments of the caching allocator."""

    key = "expandable"
    title = "expandable segments"
    price = "none on Linux; set before torch touches the card"
    code = 'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"'
    conf = "expandable_segments:True"

    def prepare(self) -> None:
        """Count the setting as applied: the virtual card was made with it."""
        self.applied += 1

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the setting before torch is imported."""
        return edit.insert_at_top(self.code_of(card))
