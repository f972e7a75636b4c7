"""One look at the live heap: every storage on a card that Python can name, with its holders."""

from __future__ import annotations

import gc
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbmem.core.holders import HeldStorage, Holder
from nbmem.probes.cuda import initialized_torch
from nbmem.probes.holders.lost import all_tensors, holders_of_lost
from nbmem.probes.holders.places import barred, places
from nbmem.probes.holders.reach import Reach
from nbmem.probes.holders.storages import storage_of
from nbmem.probes.holders.ways import Ways
from nbmem.probes.holders.wording import KEY_OF, Wording

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nbmem.probes.holders.places import Place
    from nbmem.probes.holders.storages import Storage

MAX_STORAGES = 20_000
"""Only the largest so many get the names of their holders."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What one look found.

    Attributes:
        by_device: The storages of each card by its CUDA ordinal, largest first.
    """

    by_device: dict[int, tuple[HeldStorage, ...]] = field(default_factory=dict)


def walk(namespace: Mapping[str, Any], without: Sequence[Place] = ()) -> Walk:
    """Look at everything that holds memory on a card now.

    Args:
        namespace: The notebook's names.
        without: Places that are left out: what would nothing but the rest still hold?
    """
    torch: Any = initialized_torch()
    if torch is None:
        return Walk()
    # The walk makes some million short-lived objects, which must not set off a collection.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - subclasses and modes keep silent
            return _walk(torch, namespace, without)
    finally:
        if collecting:
            gc.enable()


def _walk(torch: Any, namespace: Mapping[str, Any], without: Sequence[Place]) -> Walk:
    left_out = {(place.root, place.label, id(place.thing)) for place in without}
    begun = [
        place
        for place in places(namespace)
        if (place.root, place.label, id(place.thing)) not in left_out
    ]
    reach = Reach(torch, barred(namespace))
    reach.walk([place.thing for place in begun])
    seen = _Seen(torch, reach.tensors)
    ways = Ways(reach, seen.targets())
    holders = _holders(begun, ways, Wording(torch), seen)
    lost = {k: t for k, t in all_tensors(torch).items() if k not in reach.tensors}
    lost = {k: t for k, t in lost.items() if seen.add(k, t) and seen.storage[k] not in holders}
    if lost:
        for key, holder in holders_of_lost(reach, lost).items():
            holders[seen.storage[key]].append(holder)
    return Walk(seen.by_device(holders))


class _Seen:
    """The storages that tensors show, each once."""

    def __init__(self, torch: Any, tensors: Mapping[int, Any]) -> None:
        self._torch = torch
        self.storage: dict[int, tuple[int, int]] = {}
        self._best: dict[tuple[int, int], Storage] = {}
        for key, tensor in tensors.items():
            self.add(key, tensor)

    def add(self, key: int, tensor: Any) -> bool:
        """See one tensor; False if it has no storage on a card."""
        found = storage_of(self._torch, tensor)
        if found is None:
            return False
        at = found.device, found.addr
        self.storage[key] = at
        best = self._best.get(at)
        if best is None or found.span > best.span:
            self._best[at] = found
        return True

    def targets(self) -> set[int]:
        """The tensors whose holders are wanted: those on the largest storages."""
        order = sorted(self._best, key=lambda at: -self._best[at].size)
        wanted = set(order[:MAX_STORAGES])
        return {key for key, at in self.storage.items() if at in wanted}

    def by_device(
        self, holders: Mapping[tuple[int, int], Sequence[Holder]]
    ) -> dict[int, tuple[HeldStorage, ...]]:
        """The storages with their holders, by card."""
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


def _holders(
    begun: Sequence[Place], ways: Ways, wording: Wording, seen: _Seen
) -> dict[tuple[int, int], list[Holder]]:
    """Every place's way to every storage that it reaches."""
    found: dict[tuple[int, int], list[Holder]] = defaultdict(list)
    for place in begun:
        for key, way in ways.from_start(place.thing):
            found[seen.storage[key]].append(wording.holder(place, way))
    return found


def _best_of_each_root(holders: Sequence[Holder]) -> tuple[Holder, ...]:
    """One way for each root: the kind that says most, then the shortest path."""
    best: dict[str, Holder] = {}
    for holder in sorted(holders, key=_rank):
        best.setdefault(holder.root, holder)
    return tuple(best.values())


def _rank(holder: Holder) -> tuple[Any, ...]:
    path = holder.path
    return holder.kind, path.startswith(KEY_OF), len(path), path
