"""Find which private pools are in use by CUDA graphs or MemPools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from nbmem.capture.torch_cuda import initialized_torch
from nbmem.core.files.torch_snapshot import pool_number
from nbmem.core.runtime.garbage_collector import instances, with_subclasses

_USERS = {"CUDAGraph": ("a CUDA graph", "CUDA graphs"), "MemPool": ("a MemPool", "MemPools")}
_MAX_NAMES = 3


def pools_in(snapshot: Mapping[str, Any]) -> set[int]:
    """Return the numbers of the pools in a snapshot of torch's allocator."""
    segments = snapshot.get("segments") or ()
    return {pool_number(one.get("segment_pool_id") or (0, 0)) for one in segments}


def pools_in_use(among: Iterable[int]) -> tuple[int, ...]:
    """Return the private pools that empty_cache() does not release now.

    `among` is as for `users_of`.
    """
    return tuple(sorted(users_of(among, {})))


def users_of(among: Iterable[int], names: Mapping[str, Any]) -> dict[int, str]:
    """Describe the users of each private pool: `a CUDA graph (step)`.

    Unused pools are omitted.

    torch releases a pool's free segments once the pool has no user any more: no captured graph,
    no MemPool (`release_cached_blocks` in
    https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp). It does not
    report the users, but both are objects of Python, which can list those that are alive.

    Args:
        among: The numbers of pools that hold memory, as in `Segments.pool`; if there is only the
            default pool's, nothing is searched.
        names: The notebook's names, for the users that have one.
    """
    there = set(among) - {0}
    torch: Any = initialized_torch()
    if not there or torch is None:
        return {}
    found: dict[int, dict[str, list[Any]]] = {}
    kinds = {k: t for k in _USERS if isinstance(t := getattr(torch.cuda, k, None), type)}
    for kind, one in kinds.items():
        for obj in instances(with_subclasses(one)):
            with suppress(Exception):  # a graph without a capture raises an error
                number = pool_number(obj.pool() if hasattr(obj, "pool") else obj.id)
                if number in there:
                    found.setdefault(number, {}).setdefault(kind, []).append(obj)
    called = {id(value): name for name, value in list(names.items())[::-1]}
    return {number: _users(by_kind, called) for number, by_kind in found.items()}


def _users(by_kind: Mapping[str, list[Any]], called: Mapping[int, str]) -> str:
    """Name the users of one pool, all of them if several graphs share it."""
    listed = []
    for kind, objects in by_kind.items():
        one, many = _USERS[kind]
        callers = [called[id(obj)] for obj in objects if id(obj) in called]
        named = f" ({', '.join(sorted(callers)[:_MAX_NAMES])})" if callers else ""
        listed.append(f"{one if len(objects) == 1 else f'{len(objects)} {many}'}{named}")
    return " and ".join(listed)
