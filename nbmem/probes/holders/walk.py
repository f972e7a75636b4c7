"""One look at the live heap: every storage on a card that Python can name, with its holders."""

from __future__ import annotations

import gc
from collections import defaultdict
from contextlib import contextmanager
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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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


@dataclass(frozen=True, slots=True)
class Cut:
    """What a look shall pass over, to learn what letting go of it would free.

    Attributes:
        place: Says which places to leave out.
        edges: References to pass over, as the ids of their two ends.
    """

    place: Callable[[Place], bool] = lambda _: False
    edges: frozenset[tuple[int, int]] = frozenset()


def walk(
    namespace: Mapping[str, Any],
    cut: Cut | None = None,
    met: Callable[[Iterable[Any]], None] | None = None,
) -> Walk:
    """Look at everything that holds memory on a card now.

    Args:
        namespace: The notebook's names.
        cut: What to pass over, or None.
        met: Is told the tensors that were met, and must not keep them.
    """
    torch: Any = initialized_torch()
    if torch is None:
        return Walk()
    with _quiet(torch):
        return _walk(torch, namespace, cut or Cut(), met)


@contextmanager
def _quiet(torch: Any) -> Iterator[None]:
    """No collection, though a walk makes some million short-lived objects; no subclass's code."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - for subclasses and modes
            yield
    finally:
        if collecting:
            gc.enable()


def _walk(
    torch: Any,
    namespace: Mapping[str, Any],
    cut: Cut,
    met: Callable[[Iterable[Any]], None] | None,
) -> Walk:
    begun = [place for place in places(namespace) if not cut.place(place)]
    reach = Reach(torch, barred(namespace), cut.edges)
    reach.walk([place.thing for place in begun])
    if met is not None:
        met(reach.tensors.values())
    seen = _Seen(torch, reach.tensors)
    ways = Ways(reach, seen.targets())
    holders = _holders(begun, ways, Wording(torch), seen)
    lost = {k: t for k, t in all_tensors(torch).items() if k not in reach.tensors}
    lost = {k: t for k, t in lost.items() if seen.add(k, t) and seen.storage[k] not in holders}
    if lost:
        for key, holder in holders_of_lost(reach, lost).items():
            holders[seen.storage[key]].append(holder)
    return Walk(seen.by_device(holders))


def reached(namespace: Mapping[str, Any], cut: Cut | None = None) -> set[tuple[int, int]]:
    """The storages that any place reaches, as (CUDA ordinal, address); no holder is named."""
    torch: Any = initialized_torch()
    if torch is None:
        return set()
    cut = cut or Cut()
    begun = [place.thing for place in places(namespace) if not cut.place(place)]
    return _storages_from(torch, begun, namespace, cut)


def reached_from(thing: object, namespace: Mapping[str, Any]) -> set[tuple[int, int]]:
    """The storages that one object reaches, as (CUDA ordinal, address)."""
    torch: Any = initialized_torch()
    return set() if torch is None else _storages_from(torch, [thing], namespace, Cut())


def _storages_from(
    torch: Any, things: list[object], namespace: Mapping[str, Any], cut: Cut
) -> set[tuple[int, int]]:
    with _quiet(torch):
        reach = Reach(torch, barred(namespace), cut.edges)
        reach.walk(things)
        return set(_Seen(torch, reach.tensors).storage.values())


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
