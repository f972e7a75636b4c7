"""What a program's operators did with a card's memory, in their order."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple

PAGE = 2 << 20
"""Bytes that the driver moves at once when memory is short: a root chunk.
https://github.com/NVIDIA/open-gpu-kernel-modules/blob/04848d3dab5ed57188e4776937f69b3fc82cdd84/kernel-open/nvidia-uvm/uvm_pmm_gpu.c
"""
MAX_TOUCHES = 4_000_000
"""Of one run, 70 MB; later ones are not noted."""


class Did(IntEnum):
    """What was done with a stretch of memory."""

    TAKEN = 0
    GIVEN = 1
    READ = 2
    WRITTEN = 3
    STEP = 4


class Moved(NamedTuple):
    """Bytes over the link.

    Attributes:
        to_card: From the host to the card.
        to_host: From the card to the host.
    """

    to_card: int = 0
    to_host: int = 0

    @property
    def total(self) -> int:
        """Both ways."""
        return self.to_card + self.to_host

    def since(self, before: Moved) -> Moved:
        """What was moved after an earlier count."""
        return Moved(self.to_card - before.to_card, self.to_host - before.to_host)


class Touches:
    """The stretches of memory that were taken, used and given back; columns of one length.

    Attributes:
        did: What was done, a `Did`.
        block: Address of the allocator's block that it is in.
        addr: Where it begins.
        size: How many bytes; 0 where the block says it.
        full: Whether later ones were left out.
    """

    def __init__(self) -> None:
        self.did = array("b")
        self.block = array("q")
        self.addr = array("q")
        self.size = array("q")
        self.full = False

    def note(self, did: Did, block: int = 0, size: int = 0, offset: int = 0) -> None:
        """Note one.

        Args:
            did: What was done.
            block: Address of the block.
            size: Bytes that were used.
            offset: Where in the block they begin.
        """
        if len(self.did) >= MAX_TOUCHES:
            self.full = True
            return
        self.did.append(did)
        self.block.append(block)
        self.addr.append(block + offset)
        self.size.append(size)


def last_step(marks: list[Moved], end: Moved) -> Moved:
    """What one step moves: between the last two marks; all of it where there are not two.

    Args:
        marks: What had been moved at each mark, of which a step has one.
        end: What had been moved at the end.
    """
    return marks[-1].since(marks[-2]) if len(marks) > 1 else end
