"""Store the tensors observed at counter samples, in batches.

A model's thousand weights are one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.session import CounterSamples, StorageLabels

if TYPE_CHECKING:
    from nbmem.capture.record.tracked_objects import OptimizerParameter, TrackedObject
    from nbmem.capture.tensors.tensors import ObservedStorage

    Owner = TrackedObject | OptimizerParameter | None


_Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Batch(NamedTuple):
    """Storages that were observed together.

    Attributes:
        sample: The counter sample at which they were observed.
        seen: The storages.
        owner: The module or optimizer in which they were found; None if each has its own.
    """

    sample: int
    seen: Sequence[ObservedStorage]
    owner: Owner

    def rows(self) -> Iterator[tuple[ObservedStorage, Owner]]:
        """Yield each storage with its owner."""
        return ((seen, self.owner or seen.of) for seen in self.seen)


class IdentityRows:
    """Batches of storages in the order in which they were observed.

    Attributes:
        batches: The batches; other threads may read them while batches are added.
        count: Number of storages in all of them.
        parts: The part of each name that has one, by the index that `place` gave the name.
    """

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.count = 0
        self.parts: dict[int, str] = {}

    def add(self, sample: int, seen: Sequence[ObservedStorage], owner: Owner = None) -> Batch:
        """Add a batch and return it.

        An empty batch is returned but not stored.
        """
        batch = Batch(sample, seen, owner)
        if seen:
            self.batches.append(batch)
            self.count += len(seen)
        return batch

    def since(self, sample: int) -> Iterator[tuple[ObservedStorage, Owner]]:
        """Yield storages observed at a counter sample or later, latest first."""
        for batch in reversed(self.batches):
            if batch.sample < sample:
                return
            yield from reversed(list(batch.rows()))

    def place(
        self, device: int, counter_samples: CounterSamples, names: dict[str, int]
    ) -> StorageLabels:
        """Return one card's storage labels.

        Args:
            device: CUDA ordinal.
            counter_samples: The card's counter samples.
            names: Collects the names: text to index.
        """
        known: dict[tuple[int, int], _Columns] = {}  # a model's are equal at start and end
        parts = []
        for sample, seen, owner in self.batches:
            key = id(seen), id(owner)
            if key not in known:
                known[key] = self._columns(device, seen, owner, names)
            addr, size, category, name = known[key]
            at = counter_samples.position[sample] if len(addr) else 0
            parts.append((np.full(len(addr), at, np.int64), addr, size, category, name))
        empty = np.zeros(0, np.int64)
        columns = map(np.concatenate, zip(*parts, strict=True)) if parts else [empty] * 5
        position, addr, size, category, name = columns
        return StorageLabels(
            position=position,
            addr=addr,
            size=size,
            category=category.astype(np.uint8),
            name=name,
        )

    def _columns(
        self, device: int, seen: Sequence[ObservedStorage], owner: Owner, names: dict[str, int]
    ) -> _Columns:
        """Return address, size, category and name of storages on one card."""
        found = [one for one in seen if one.device == device]
        own = "" if owner is None else owner.name
        texts = [
            f"{one.before}{one.of.name}{one.name}"
            if one.of is not None
            else one.name
            if owner is None
            else f"{one.before}{own}{one.name}"
            for one in found
        ]
        indices = [names.setdefault(text, len(names)) for text in texts]
        self.parts |= {
            index: one.part for index, one in zip(indices, found, strict=True) if one.part
        }
        return (
            np.array([one.addr for one in found], np.int64),
            np.array([one.size for one in found], np.int64),
            np.array([one.category for one in found], np.uint8),
            np.array(indices, np.int64),
        )
