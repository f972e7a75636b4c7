"""Paging as the driver does it: on faults, oldest arrival evicted first.

The driver cannot detect that a page on the card is used, only that one is missing. Its list is in
the order in which pages came ("A root chunk is moved to the tail of that list whenever any of its
subchunks is allocated"), and an evicted page is copied to the host. The documents call that LRU. A
page that was never written to comes without a copy. The driver does not know of memory that was
freed into a pool: such pages are moved like others.
https://github.com/NVIDIA/open-gpu-kernel-modules/blob/04848d3dab5ed57188e4776937f69b3fc82cdd84/kernel-open/nvidia-uvm/uvm_pmm_gpu.c
"""

from __future__ import annotations

from nbmem.virtual.paging.accesses import PAGE, AccessKind, AccessLog, TransferredBytes, last_step


def paged(touches: AccessLog, room: int, *, by_use: bool = False) -> TransferredBytes:
    """Return the bytes that one step moves.

    Args:
        touches: The log of the program's accesses.
        room: Bytes of the card that are available to it.
        by_use: Whether the least recently used page is evicted first, which no driver can know.
    """
    most = max(room // PAGE, 1)
    here: dict[int, None] = {}  # in the order in which they leave
    there: set[int] = set()
    came = left = 0
    marks: list[TransferredBytes] = []
    for did, addr, size in zip(touches.kind, touches.addr, touches.size, strict=True):
        if did == AccessKind.STEP:
            marks.append(TransferredBytes(came * PAGE, left * PAGE))
        if did not in _USES or not size:
            continue
        for page in range(addr // PAGE, (addr + size - 1) // PAGE + 1):
            if page in here:
                if by_use:
                    del here[page]
                    here[page] = None
                continue
            if len(here) >= most:
                leaving = next(iter(here))
                del here[leaving]
                there.add(leaving)
                left += 1
            if page in there:
                there.discard(page)
                came += 1
            here[page] = None
    return last_step(marks, TransferredBytes(came * PAGE, left * PAGE))


_USES = frozenset((AccessKind.ALLOCATED, AccessKind.READ, AccessKind.WRITTEN))
"""What is taken is written next: that is a use."""
