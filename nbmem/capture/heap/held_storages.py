"""Collect the storages that tensors show, with the best holders.

Each storage is listed once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import Any

from nbmem.capture.tensors.tensor_storages import Storage, storage_of
from nbmem.core.session.holders import HeldStorage, Holder, HolderKind
from nbmem.core.session.tensor_names import KEY_OF
from nbmem.core.session.variable_paths import parse_path

MAX_STORAGES = 20_000
"""Number of the largest storages whose holders are named."""


class TensorStorages:
    """The storages that tensors show.

    Attributes:
        storage: The storage of each tensor, as (CUDA ordinal, address), by the tensor's id.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.storage: dict[int, tuple[int, int]] = {}
        self._best: dict[tuple[int, int], Storage] = {}

    def add(self, key: int, tensor: Any, but: Container[tuple[int, int]] = ()) -> bool:
        """Add a tensor's storage; return False if there is none to add.

        There is none if the tensor has no storage on a card, or one in `but`.
        """
        found = storage_of(self._torch, tensor)
        if found is None or (at := (found.device, found.addr)) in but:
            return False
        self.storage[key] = at
        best = self._best.get(at)
        if best is None or found.span > best.span:
            self._best[at] = found
        return True

    def targets(self) -> set[int]:
        """Return the ids of the tensors on the largest storages.

        The holders of these are needed.
        """
        order = sorted(self._best, key=lambda at: -self._best[at].size)
        wanted = set(order[:MAX_STORAGES])
        return {key for key, at in self.storage.items() if at in wanted}

    def by_device(
        self, holders: Mapping[tuple[int, int], Sequence[Holder]]
    ) -> dict[int, tuple[HeldStorage, ...]]:
        """Return the storages that have holders, by CUDA ordinal.

        The largest come first.
        """
        found: dict[int, list[HeldStorage]] = defaultdict(list)
        for at, storage in self._best.items():
            ways = _best_of_each_root(holders.get(at, ()))
            if ways:
                found[storage.device].append(
                    HeldStorage(
                        addr=storage.addr, size=storage.size, form=storage.form, holders=ways
                    )
                )
        return {
            device: tuple(sorted(storages, key=lambda held: (-held.size, held.addr)))
            for device, storages in found.items()
        }


def _best_of_each_root(holders: Sequence[Holder]) -> tuple[Holder, ...]:
    """Return the best holder of each root and each running function's local.

    It is the one of the most informative kind, then the one with the shortest path.
    """
    best: dict[tuple[str, str], Holder] = {}
    for holder in sorted(holders, key=_rank):
        own = parse_path(holder.path) if holder.kind is HolderKind.FRAME else None
        best.setdefault((holder.root, own.variable if own and own.function else ""), holder)
    return tuple(best.values())


def _rank(holder: Holder) -> tuple[Any, ...]:
    path = holder.path
    return holder.kind, path.startswith(KEY_OF), len(path), path
