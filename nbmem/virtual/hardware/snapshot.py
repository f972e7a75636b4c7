"""The dictionary of torch.cuda.memory._snapshot(), from the simulation."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nbmem.core.files.snapshot_segments import listed_segments

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.hardware.machine import Machine


def snapshot_of(machine: Machine, *, traces: bool = True, pool: Any = None) -> dict[str, Any]:
    """Return segments, blocks, history and settings as torch's C++ does.

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
    """Merge the annotations of all cards by time."""
    return list(merge(*(gpu.history.annotations() for gpu in machine.gpus), key=_time_of))


_time_of = itemgetter("time_us")


def _segments(gpu: VirtualGPU) -> Iterator[dict[str, Any]]:
    layout = gpu.allocator.layout()
    found = gpu.history.frames_of_live()

    def frames(row: int) -> list[dict[str, Any]]:
        return found.get(int(layout.blocks.addr[row]), [])

    return listed_segments(layout, gpu.index, frames, gpu.pools.pair)


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
