"""A log of operators' memory accesses on a card, in their order."""

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


class AccessKind(IntEnum):
    """Kind of access to a range of memory, or the mark of a step."""

    ALLOCATED = 0
    FREED = 1
    READ = 2
    WRITTEN = 3
    STEP = 4


class TransferredBytes(NamedTuple):
    """Bytes transferred between host and card.

    Attributes:
        to_card: From the host to the card.
        to_host: From the card to the host.
    """

    to_card: int = 0
    to_host: int = 0

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return self.to_card + self.to_host

    def since(self, before: TransferredBytes) -> TransferredBytes:
        """Return the bytes moved after an earlier count."""
        return TransferredBytes(self.to_card - before.to_card, self.to_host - before.to_host)


class AccessLog:
    """Ranges of memory that were allocated, used and freed, as columns.

    Attributes:
        kind: The kind of access.
        block: Address of the allocator's block that holds the range.
        addr: Address of the first byte.
        size: Bytes; 0: the size of the block.
        full: Whether later accesses were left out.
    """

    def __init__(self) -> None:
        self.kind = array("b")
        self.block = array("q")
        self.addr = array("q")
        self.size = array("q")
        self.full = False

    def note(self, did: AccessKind, block: int = 0, size: int = 0, offset: int = 0) -> None:
        """Append one access, unless the log is full.

        Args:
            did: What was done.
            block: Address of the block.
            size: Bytes that were used.
            offset: Where in the block they begin.
        """
        if len(self.kind) >= MAX_TOUCHES:
            self.full = True
            return
        self.kind.append(did)
        self.block.append(block)
        self.addr.append(block + offset)
        self.size.append(size)


def last_step(marks: list[TransferredBytes], end: TransferredBytes) -> TransferredBytes:
    """Return the bytes moved between the last two marks.

    All bytes if there are fewer than two marks.

    Args:
        marks: The bytes that had been moved at each mark; a step has one.
        end: The bytes that had been moved at the end.
    """
    return marks[-1].since(marks[-2]) if len(marks) > 1 else end
