"""Find the workspaces of cuDNN's kernel search.

This is the search of `torch.backends.cudnn.benchmark`. torch allocates the largest workspace that
any kernel needs, frees it at once, and then empties the cache:
https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cudnn/Conv_v8.cpp
(generate_and_filter_plans, run_single_conv)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import GIVES_BACK, Action

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.session.session import Session

SEARCH = "cuDNN's search for the fastest kernel"


def find_cudnn_searches(allocations: Allocations, session: Session, device: int) -> list[int]:
    """Return the rows of cuDNN's search workspaces.

    There are none unless the program set torch.backends.cudnn.benchmark.
    """
    if not session.facts.get("cudnn_benchmark"):
        return []
    a, action = allocations, session.devices[device].events.action
    brief = np.flatnonzero((a.allocated_at >= 0) & (a.freed - a.allocated_at == 1))
    # A free request that completes at once adds one more event after it.
    others = np.flatnonzero(action != Action.FREE_COMPLETED)
    behind = np.searchsorted(others, a.freed[brief] + 1)
    brief, behind = brief[behind < len(others)], behind[behind < len(others)]
    rows: list[int] = brief[np.isin(action[others[behind]], GIVES_BACK)].tolist()
    return rows
