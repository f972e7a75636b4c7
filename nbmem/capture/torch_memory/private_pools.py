"""Which private pools something still uses: graphs that can be replayed, and MemPools."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbmem.capture.torch_cuda import initialized_torch
from nbmem.core.files.torch_snapshot import pool_number
from nbmem.core.runtime.garbage_collector import instances, with_subclasses

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_USERS = {"CUDAGraph": ("a CUDA graph", "CUDA graphs"), "MemPool": ("a MemPool", "MemPools")}
_MOST_NAMES = 3


def pools_in(snapshot: Mapping[str, Any]) -> set[int]:
    """The numbers of the pools whose memory a snapshot of torch's names."""
    segments = snapshot.get("segments") or ()
    return {pool_number(one.get("segment_pool_id") or (0, 0)) for one in segments}


def kept_pools(among: Iterable[int]) -> tuple[int, ...]:
    """Find the private pools that empty_cache() leaves alone now; the argument is that below."""
    return tuple(sorted(users_of(among, {})))


def users_of(among: Iterable[int], names: Mapping[str, Any]) -> dict[int, str]:
    """Find who uses each private pool, in words: `a CUDA graph (step)`; unused ones are left out.

    torch gives a pool's free segments back once nobody uses the pool any more: no captured graph,
    no MemPool (`release_cached_blocks` in
    https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp). It does not
    say who does, but both are objects of Python, which knows those that live.

    Args:
        among: The numbers of pools that hold memory, as in `Segments.pool`; nobody looks where
            there is none beside the default pool's.
        names: The notebook's names, for those that have one.
    """
    there = set(among) - {0}
    torch: Any = initialized_torch()
    if not there or torch is None:
        return {}
    found: dict[int, dict[str, list[Any]]] = {}
    kinds = {k: t for k in _USERS if isinstance(t := getattr(torch.cuda, k, None), type)}
    for kind, one in kinds.items():
        for thing in instances(with_subclasses(one)):
            with suppress(Exception):  # a graph that holds no capture says so by an error
                number = pool_number(thing.pool() if hasattr(thing, "pool") else thing.id)
                if number in there:
                    found.setdefault(number, {}).setdefault(kind, []).append(thing)
    called = {id(value): name for name, value in list(names.items())[::-1]}
    return {number: _users(by_kind, called) for number, by_kind in found.items()}


def _users(by_kind: Mapping[str, list[Any]], called: Mapping[int, str]) -> str:
    """Name the users of one pool; one that several graphs share has all of them."""
    listed = []
    for kind, things in by_kind.items():
        one, many = _USERS[kind]
        mine = [called[id(thing)] for thing in things if id(thing) in called]
        named = f" ({', '.join(sorted(mine)[:_MOST_NAMES])})" if mine else ""
        listed.append(f"{one if len(things) == 1 else f'{len(things)} {many}'}{named}")
    return " and ".join(listed)
