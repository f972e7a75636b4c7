"""Find the staging buffers of reduction kernels.

A reduction that several blocks share allocates its result, a buffer for each block's partial
result, and a semaphore for each column of blocks. After the kernel the semaphores are freed, then
the buffer:
https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/Reduce.cuh#L1216
The semaphores identify the buffer. In a backward it is no gradient, though something was allocated
during its lifetime. A list of tensors freed from its end (an optimizer's, of weights and biases) is
no such buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import Action, Events

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Mask

NAME = "staging of a reduction"
SEMAPHORE = 4
"""Bytes of a semaphore; the buffer has at least as many for each column."""
MAX_COLUMNS = 65_535
"""Maximum number of blocks in a row of a grid."""


def select_by_overlap(allocations: Allocations, events: Events, others: int = 0) -> Mask:
    """Select allocations during whose life a given number of others was made.

    The number is `others`, by default 0.
    """
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    inside = np.searchsorted(allocs, allocations.freed)
    inside -= np.searchsorted(allocs, allocations.allocated_at, side="right")
    found: Mask = (inside == others) & (allocations.allocated_at >= 0)
    return found


def select_staging_buffers(allocations: Allocations, events: Events) -> Mask:
    """Select the staging buffers of reductions."""
    size = allocations.requested
    frees = np.flatnonzero(events.action == Action.FREE_REQUESTED)
    goes = np.searchsorted(frees, allocations.freed)
    beside = np.append(np.arange(1, len(size)), 0)[: len(size)]  # the next allocation
    semaphores = (size[beside] % SEMAPHORE == 0) & (size[beside] <= SEMAPHORE * MAX_COLUMNS)
    found: Mask = semaphores & (size[beside] <= size) & (goes[beside] + 1 == goes)
    found &= select_by_overlap(allocations, events, others=1)
    result, earlier = (np.maximum(np.arange(len(size)) - before, 0) for before in (1, 2))
    made = np.searchsorted(frees, allocations.allocated_at)
    found &= made[result] == made  # nothing freed between result and buffer
    found &= ~((goes[result] == goes + 1) & (goes[earlier] == goes + 2))
    return found
