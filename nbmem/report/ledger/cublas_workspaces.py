"""Recognize cuBLAS workspaces by size, thread and stream.

A workspace is live from a thread's first matrix product on a stream to the end, or until all are
cleared. Lightning clears those of all threads at once when training ends. If only one thread has
any (an evaluation), one allocation of the odd size of cards before Hopper is a workspace. A loop's
results would be several. A handle has one workspace per stream, and a graph is captured on its own
stream:
https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/cuda/CublasHandlePool.cpp

Where several threads trained at the same time there are no phases. Each thread has its own
workspace, and the engine has one for all. Their odd size identifies them as cuBLAS's; of 32 MiB
blocks, those that Python does not reach.

A cuBLASLt epilogue (addmm) has a workspace of its own, allocated once. Recorded on an H100: once in
the forward thread, once in the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.cublas import WORKSPACE, WORKSPACE_HOPPER, WORKSPACE_LT

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.ledger.allocation_facts import Facts

CUBLAS = (WORKSPACE_HOPPER, WORKSPACE)
CUBLASLT = WORKSPACE_LT
THREADS = (("forward", "inference"), ("backward",))
"""Phases that the forward thread and the engine's thread compute."""


def workspaces(facts: Facts) -> Mask:
    """Select the allocations that are cuBLAS or cuBLASLt workspaces.

    They are the first of their size on each stream in each thread that are live at the end or are
    cleared.
    """
    a = facts.allocations
    kept = facts.unseen & ((a.freed >= facts.events) | _cleared(facts))
    found: Mask = np.zeros(len(a), bool)
    places = [a.allocated_at < 0, *(facts.phases.named(facts.born_in, *names) for names in THREADS)]
    found |= kept & places[0] & np.isin(a.requested, CUBLAS)  # an earlier cell's, of both threads
    for place in (*places, _elsewhere(facts, places[-1])):
        inside = kept & place
        of_size = inside & np.isin(a.requested, CUBLAS)
        for stream in np.unique(a.stream[of_size]).tolist():
            first = _first(of_size & (a.stream == stream), a.allocated_at)
            if first is not None:
                found[first] = True
                near = inside & (facts.born_in == facts.born_in[first]) & (a.stream == stream)
                beside = _first(near & (a.requested == CUBLASLT), a.allocated_at)
                if beside is not None:
                    found[beside] = True
    return found | _of_threads(facts, kept)


def _of_threads(facts: Facts, kept: Mask) -> Mask:
    """Select workspaces where several threads trained at the same time.

    On each stream these are one for each thread, and one for the engine.
    """
    a = facts.allocations
    found: Mask = np.zeros(len(a), bool)
    if facts.threads > 1:
        unheld = np.zeros(len(a), bool) if facts.reached is None else ~facts.reached
        unheld |= a.requested == WORKSPACE
        is_workspace = kept & unheld & (a.allocated_at >= 0) & np.isin(a.requested, CUBLAS)
        for stream in np.unique(a.stream[is_workspace]).tolist():
            rows = np.flatnonzero(is_workspace & (a.stream == stream))
            found[rows[np.argsort(a.allocated_at[rows], kind="stable")][: facts.threads + 1]] = True
    return found


def select_possible_workspaces(allocations: Allocations, unseen: Mask, events: int) -> Mask:
    """Select allocations that may be cuBLAS workspaces, by size alone.

    They are live at the end. Only the first pass of a loop allocates them.
    """
    lasting = unseen & (allocations.freed >= events)
    is_workspace: Mask = lasting & np.isin(allocations.requested, (*CUBLAS, CUBLASLT))
    return is_workspace


def first_in_backward(once: Mask, allocations: Allocations, in_backward: Mask) -> Mask:
    """Select each stream's first possible workspace made by a backward.

    So it is not taken for a gradient.

    Args:
        once: Mask of the possible workspaces, as returned by `select_possible_workspaces`.
        allocations: Every allocation of the recording.
        in_backward: Mask of those that a backward made.
    """
    found: Mask = np.zeros(len(once), bool)
    rows = np.flatnonzero(once & in_backward)
    rows = rows[np.argsort(allocations.allocated_at[rows], kind="stable")]
    found[rows[np.unique(allocations.stream[rows], return_index=True)[1]]] = True
    return found


def unheld_workspaces(requested: Ints, stream: Ints) -> Mask:
    """Select the cuBLAS workspaces among live blocks that Python lacks.

    The blocks are live at one moment. Each stream has one workspace per thread. If more blocks have
    the size, sizes cannot tell them apart, and none is selected.

    Args:
        requested: Requested bytes of each block.
        stream: The stream of each.
    """
    found: Mask = np.isin(requested, CUBLAS)
    for one in np.unique(stream[found]).tolist():
        is_workspace = found & (stream == one)
        found &= ~is_workspace | (is_workspace.sum() <= len(THREADS))
    return found


def _elsewhere(facts: Facts, in_engine: Mask) -> Mask:
    """Select allocations outside the engine that Python does not reach.

    Any phase but backward counts. Without a heap walk none is selected. A matrix product outside
    modules takes a workspace too, but its size shows nothing: a plain tensor may also have 32 MiB.
    """
    if facts.reached is None:
        return np.zeros(len(in_engine), bool)
    elsewhere: Mask = ~in_engine & (facts.allocations.allocated_at >= 0) & ~facts.reached
    return elsewhere


def _cleared(facts: Facts) -> Mask:
    """Select what was freed at a moment when workspaces were cleared.

    Both threads' workspaces were freed then, with no allocation in between. A single one of the
    size of cards before Hopper counts as well.
    """
    a, phases = facts.allocations, facts.phases
    moment = np.searchsorted(np.sort(a.allocated_at), a.freed)
    dead = facts.unseen & (a.freed < facts.events) & ~facts.within_one_phase
    at_last = moment == len(a)  # also after an error that ended a forward
    dead &= ~phases.named(facts.died_in, "forward", "backward") | at_last
    of_size = dead & np.isin(a.requested, CUBLAS)
    forward, backward = (phases.named(facts.born_in, *names) for names in THREADS)
    both = np.intersect1d(moment[of_size & forward], moment[of_size & backward])
    single = of_size & forward & (a.requested == WORKSPACE)
    cleared: Mask = dead & (np.isin(moment, both) | (single & (single.sum() == 1)))
    return cleared


def _first(which: Mask, born: Ints) -> int | None:
    rows = np.flatnonzero(which)
    return int(rows[np.argmin(born[rows])]) if len(rows) else None
