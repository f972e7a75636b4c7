"""Unified memory: what does not fit is paged between the card and the host by the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.interconnect import FAULTED, link_of
from nbmem.core.units import format_bytes
from nbmem.estimates.remedies.base import Remedy
from nbmem.virtual.paging import driver, ideal
from nbmem.virtual.paging.accesses import Did, Touches

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.gpu import VirtualGPU

_CODE = """\
import rmm
import torch
from rmm.allocators.torch import rmm_torch_allocator
rmm.reinitialize(managed_memory=True, pool_allocator=True)
torch.cuda.memory.change_current_allocator(rmm_torch_allocator)"""
"""Before anything is on the card.
https://github.com/rapidsai/rmm/blob/3f18480d716609e6e1d83fdbe7779ad4fcdfc624/python/rmm/rmm/allocators/torch.py
"""
NOTHING_TO_PAGE = "The program fits, so nothing would be paged."


class Unified(Remedy):
    """Every allocation is managed (cudaMallocManaged), and may be larger than the card."""

    key = "unified"
    title = "unified memory"
    price = "pages what does not fit over the card's link, in every step"
    pages = True

    def __init__(self) -> None:
        super().__init__()
        self._gpu: VirtualGPU | None = None
        self._touches = Touches()

    def prepare(self) -> None:
        """Note what the operators use from here on."""
        from nbmem import virtual

        self._gpu = virtual.active()
        if self._gpu is not None:
            self._gpu.touches = self._touches
            self.applied += 1

    def before_backward(self) -> None:
        """A step is from one backward to the next: where it begins is the same in each."""
        self._touches.note(Did.STEP)

    def finish(self) -> None:
        """Nothing is noted after the program."""
        if self._gpu is not None:
            self._gpu.touches = None

    def price_of(self, card: Card, steps: int) -> str:
        """What a step pages, at best and as the driver does it, and how long that takes."""
        link = link_of(card.capability)
        if not steps or link is None or self._touches.full or self._gpu is None:
            return self.price
        room = self.room - self._gpu.context_bytes
        if room <= 0:
            return self.price
        best = ideal.paged(self._touches, room)
        orders = (driver.paged(self._touches, room, by_use=by_use) for by_use in (False, True))
        worst = max(orders, key=lambda moved: moved.total)
        least = max(best) / link.rate
        most = max(worst.total / (FAULTED * link.rate), least)
        return (
            f"pages {format_bytes(best.total)} at best, {format_bytes(worst.total)} as the driver "
            f"does it, in each step: {least:,.1f} to {most:,.1f} s over {link.name}, and host "
            "memory for what does not fit; Linux alone, without torch.cuda's own statistics"
        )

    def code_of(self, card: Card) -> str:
        """RMM's allocator in the place of torch's."""
        del card
        return _CODE

    def put(self, edit: Edit, card: Card) -> bool:
        """Before everything else."""
        del card
        return edit.at_the_top(_CODE)
