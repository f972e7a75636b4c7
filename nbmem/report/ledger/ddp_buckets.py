"""Find DistributedDataParallel's buckets among unobserved allocations.

No Python object refers to them, so they are identified by their exact bytes. The reducer allocates
them without another allocation in between. Together they are as large as the gradients of one type.
The first pass has one bucket, or as many as the limits give; new ones for the rest follow before
the second forward.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/distributed/c10d/reducer.cpp
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.ledger.cublas_workspaces import CUBLAS, CUBLASLT

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask
    from nbmem.core.session.session import StorageLabels
    from nbmem.report.ledger.phase_map import PhaseMap

_MADE_IN = ("load", "input", "forward")


def find_ddp_buckets(
    allocations: Allocations,
    storage_labels: StorageLabels,
    lasting: Mask,
    born_in: Ints,
    phases: PhaseMap,
) -> tuple[Ints, Ints]:
    """Find the allocations that are DistributedDataParallel's buckets.

    Args:
        allocations: Every allocation of the recording.
        storage_labels: What the probes recorded; at address 0 what they know to exist at an unknown
            address.
        lasting: Mask of the allocations that no probe recorded and that outlive their first phase.
        born_in: Index of the phase in which each was allocated.
        phases: The phases.

    Returns:
        Their rows, and for each the index of its name.
    """
    rows: list[int] = []
    names: list[int] = []
    listed = (storage_labels.addr == 0) & (storage_labels.category == Category.COMMUNICATION)
    wanted = zip(
        storage_labels.size[listed].tolist(), storage_labels.name[listed].tolist(), strict=True
    )
    for total, name in dict(wanted).items():
        matched = _kept_from_before(allocations, lasting, total)
        may_be = lasting & phases.named(born_in, *_MADE_IN)
        matched += _runs(allocations, may_be, total)
        rows += matched
        names += [name] * len(matched)
    return np.array(rows, np.int64), np.array(names, np.int64)


def _kept_from_before(a: Allocations, lasting: Mask, total: int) -> list[int]:
    """Find buckets among allocations older than the recording, by total size.

    Either one of them has exactly the wanted size, or all of them together do. Blocks of cuBLAS's
    and cuBLASLt's sizes are left out.
    """
    cublas = np.isin(a.requested, (*CUBLAS, CUBLASLT))
    old = np.flatnonzero(lasting & (a.allocated_at < 0) & ~cublas)
    single = old[a.requested[old] == total]
    if len(single) == 1:
        return [int(single[0])]
    found: list[int] = old.tolist() if int(a.requested[old].sum()) == total else []
    return found


def _runs(a: Allocations, may_be: Mask, total: int) -> list[int]:
    """Find runs of consecutive allocations whose sizes add up to a total.

    All allocations of a run must be live at one moment.
    """
    order = np.flatnonzero(a.allocated_at >= 0)
    order = order[np.argsort(a.allocated_at[order])]
    sizes = np.where(may_be[order], a.requested[order], total + 1)  # runs skip no other rows
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    ends = np.searchsorted(sums, sums[:-1] + total)
    first = np.flatnonzero(
        (ends < len(sums)) & (sums[np.minimum(ends, len(sums) - 1)] == sums[:-1] + total)
    )
    found: list[int] = []
    for begin in first.tolist():
        run = order[begin : int(ends[begin])]
        if len(run) and int(a.freed[run].min()) > int(a.allocated_at[run[-1]]) + 1:
            found += run.tolist()
    return found
