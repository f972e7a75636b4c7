"""Which private pools something still uses: graphs that can be replayed, and MemPools."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbmem.files.torch_snapshot import pool_number
from nbmem.probes.cuda import initialized_torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def pools_in(snapshot: Mapping[str, Any]) -> set[int]:
    """The numbers of the pools whose memory a snapshot of torch's names."""
    segments = snapshot.get("segments") or ()
    return {pool_number(one.get("segment_pool_id") or (0, 0)) for one in segments}


def kept_pools(among: Iterable[int]) -> tuple[int, ...]:
    """Find the private pools that empty_cache() leaves alone now.

    torch gives a pool's free segments back once nobody uses the pool any more: no captured graph,
    no MemPool (`release_cached_blocks` in
    https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp). It does not
    say who does, but both are objects of Python, which knows those that live.

    Args:
        among: The numbers of pools that hold memory, as in `Segments.pool`; nobody looks where
            there is none beside the default pool's.
    """
    there = set(among) - {0}
    torch: Any = initialized_torch()
    if not there or torch is None:
        return ()
    named = (getattr(torch.cuda, name, None) for name in ("CUDAGraph", "MemPool"))
    kinds = tuple(kind for kind in named if isinstance(kind, type))
    used = set()
    for thing in gc.get_objects():
        if issubclass(type(thing), kinds):
            with suppress(Exception):  # a graph that nothing was captured in says so by an error
                used.add(pool_number(thing.pool() if hasattr(thing, "pool") else thing.id))
    return tuple(sorted(there & used))
