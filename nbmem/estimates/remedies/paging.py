"""Unified memory: the driver pages what does not fit to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.interconnect import FAULTED, link_of
from nbmem.core.units import format_bytes
from nbmem.estimates.remedies.base import Remedy
from nbmem.virtual.paging import driver, ideal
from nbmem.virtual.paging.accesses import AccessKind, AccessLog

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
    """Managed allocations (cudaMallocManaged), which may exceed the card."""

    key = "unified"
    title = "unified memory"
    price = "pages what does not fit over the card's link, in every step"
    oversubscribes = True

    def __init__(self) -> None:
        super().__init__()
        self._gpu: VirtualGPU | None = None
        self._touches = AccessLog()

    def prepare(self) -> None:
        """Record which storages operators use from here on."""
        from nbmem import virtual

        self._gpu = virtual.active()
        if self._gpu is not None:
            self._gpu.access_log = self._touches
            self.applied += 1

    def before_backward(self) -> None:
        """Mark the start of a step: one runs from backward to backward.

        Where it begins is the same in each step.
        """
        self._touches.note(AccessKind.STEP)

    def finish(self) -> None:
        """Stop recording."""
        if self._gpu is not None:
            self._gpu.access_log = None

    def price_of(self, card: Card, steps: int) -> str:
        """Return the bytes that a step pages and the time that takes.

        There are two figures: at best, and as the driver does it.
        """
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
        """Return the lines that install RMM's managed allocator."""
        return _CODE

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines at the top of the program."""
        return edit.insert_at_top(_CODE)
