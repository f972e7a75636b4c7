"""The dictionary that torch.cuda.memory._snapshot() returns, from the simulated allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.events import BlockState

if TYPE_CHECKING:
    from nbmem.virtual.device import VirtualGPU
    from nbmem.virtual.machine import Machine

_STATES = {
    BlockState.INACTIVE: "inactive",
    BlockState.ALLOCATED: "active_allocated",
    BlockState.PENDING: "active_pending_free",
}


def snapshot_of(machine: Machine, *, traces: bool = True, pool: Any = None) -> dict[str, Any]:
    """Segments, blocks, history and settings of every card, as torch's C++ writes them.

    Args:
        machine: The cards.
        traces: Whether to list the history, too.
        pool: Only segments of this pool; None or (0, 0): all.
    """
    segments = [segment for gpu in machine.gpus for segment in _segments(gpu)]
    if pool is not None and tuple(pool) != (0, 0):
        segments = [s for s in segments if s["segment_pool_id"] == tuple(pool)]
    found = {
        "segments": segments,
        "device_traces": [gpu.history.trace() if traces else [] for gpu in machine.gpus],
        "allocator_settings": _settings(machine.gpus[0]),
        "external_annotations": _annotations(machine) if traces else [],
    }
    for gpu in machine.gpus:
        gpu.mark_snapshot()
    return found


def _annotations(machine: Machine) -> list[dict[str, Any]]:
    found = [note for gpu in machine.gpus for note in gpu.history.annotations]
    return sorted(found, key=lambda note: int(note["time_us"]))


def _segments(gpu: VirtualGPU) -> list[dict[str, Any]]:
    layout = gpu.allocator.layout()
    rows, blocks = layout.segments, layout.blocks
    found: list[dict[str, Any]] = []
    at = 0
    for n in range(len(rows)):
        addr, size = int(rows.addr[n]), int(rows.size[n])
        inside: list[dict[str, Any]] = []
        while at < len(blocks) and int(blocks.addr[at]) < addr + size:
            inside.append(_block(gpu, blocks, at))
            at += 1
        active = [b for b in inside if b["state"] != "inactive"]
        found.append(
            {
                "device": gpu.index,
                "address": addr,
                "total_size": size,
                "allocated_size": sum(
                    b["size"] for b in active if b["state"] == "active_allocated"
                ),
                "active_size": sum(b["size"] for b in active),
                "requested_size": sum(b["requested_size"] for b in active),
                "stream": int(rows.stream[n]),
                "segment_type": "small" if rows.small[n] else "large",
                "segment_pool_id": gpu.pools.pair(int(rows.pool[n])),
                "is_expandable": bool(rows.expandable[n]),
                "frames": [],
                "blocks": inside,
            }
        )
    return found


def _block(gpu: VirtualGPU, blocks: Any, at: int) -> dict[str, Any]:
    state = BlockState(int(blocks.state[at]))
    addr = int(blocks.addr[at])
    return {
        "address": addr,
        "size": int(blocks.size[at]),
        "requested_size": int(blocks.requested[at]),
        "state": _STATES[state],
        "frames": gpu.history.frames_at(addr) if state is not BlockState.INACTIVE else [],
    }


def _settings(gpu: VirtualGPU) -> dict[str, Any]:
    settings = gpu.allocator.settings
    limit = settings.max_split_size
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.conf,
        "max_split_size": -1 if limit is None else limit,
        "garbage_collection_threshold": float(settings.garbage_collection_threshold),
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {
            str(1 << n): int(d) for n, d in enumerate(settings.roundup_power2_divisions)
        },
    }
