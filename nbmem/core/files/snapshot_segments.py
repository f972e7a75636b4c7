"""Write segments and blocks in the form of torch's snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.events import Blocks, BlockState, Layout

if TYPE_CHECKING:
    Frames = list[dict[str, Any]]

_NAMES = {
    BlockState.INACTIVE: "inactive",
    BlockState.ALLOCATED: "active_allocated",
    BlockState.PENDING: "active_pending_free",
}


def listed_segments(
    layout: Layout,
    device: int,
    frames: Callable[[int], Frames],
    pool: Callable[[int], tuple[int, int]],
) -> Iterator[dict[str, Any]]:
    """Yield every segment of a card with its blocks, by address.

    Args:
        layout: The segments and blocks.
        device: CUDA ordinal.
        frames: Returns the Python stack of a block, by its row; not called for inactive ones.
        pool: Returns torch's id of a pool, by its number.
    """
    segments, blocks = layout.segments, layout.blocks
    ends = np.searchsorted(blocks.addr, segments.addr + segments.size).tolist()
    for n, (begin, end) in enumerate(pairwise([0, *ends])):
        inside = [_block(blocks, row, frames) for row in range(begin, end)]
        active = [block for block in inside if block["state"] != "inactive"]
        yield {
            "device": device,
            "address": int(segments.addr[n]),
            "total_size": int(segments.size[n]),
            "allocated_size": sum(b["size"] for b in active if b["state"] == "active_allocated"),
            "active_size": sum(b["size"] for b in active),
            "requested_size": sum(b["requested_size"] for b in active),
            "stream": int(segments.stream[n]),
            "segment_type": "small" if segments.small[n] else "large",
            "segment_pool_id": pool(int(segments.pool[n])),
            "is_expandable": bool(segments.expandable[n]),
            "frames": [],
            "blocks": inside,
        }


def _block(blocks: Blocks, row: int, frames: Callable[[int], Frames]) -> dict[str, Any]:
    state = BlockState(int(blocks.state[row]))
    return {
        "address": int(blocks.addr[row]),
        "size": int(blocks.size[row]),
        "requested_size": int(blocks.requested[row]),
        "state": _NAMES[state],
        "frames": frames(row) if state is not BlockState.INACTIVE else [],
    }
