"""Collect how the probes identified each allocation, and its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import OF_TRAINING, Category
from nbmem.core.session.holders import HolderKind
from nbmem.core.session.tensor_names import (
    DTENSOR,
    ZERO_BUCKET,
    printable_text,
    without_shape,
)
from nbmem.core.session.tensor_parts import KV_CACHE

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Codes, Ints, Mask
    from nbmem.core.session.session import DeviceTrace, Holders

NO_NAME = -1

IDENTITY = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.INPUTS,
    Category.COMMUNICATION,
    Category.USER_TENSORS,
    Category.ACTIVATIONS,
)
"""Categories that a probe can see, the one with precedence first. ACTIVATIONS is what a graph has
saved, whatever allocated it."""
_OF_A_CALL = (Category.INPUTS, Category.ACTIVATIONS)
"""A module's inputs, and what its graph saved: the names with the least information."""
_ASSIGNED = (Category.USER_TENSORS, Category.BUFFERS)
"""Categories that one name may refer to anew in each pass."""
_PERSONS = (
    HolderKind.NAME,
    HolderKind.OUT,
    HolderKind.UNDERSCORE,
    HolderKind.TRACEBACK,
    HolderKind.CLOSURE,
    HolderKind.GENERATOR,
    HolderKind.DATALOADER,
    HolderKind.FRAME,
    HolderKind.THREAD,
    HolderKind.MODULE,
)
"""Holders from the user's code; a graph is torch's, and a cycle has no owner."""
_NO_NAMES = (HolderKind.TRACEBACK, HolderKind.UNSEEN, HolderKind.GRADIENT_CYCLE)
"""Holders whose paths are no names for a tensor."""


class Observations:
    """Observations of the probes, one row per allocation.

    Attributes:
        unseen: Mask of the allocations that no probe recorded.
        fresh: Mask of the inputs that the loop itself made (a GAN's noise): after the previous
            call, and before the first call that received them. A module's results are made inside a
            call.
        reached: Mask of the allocations that Python reached at the end; None without a heap walk.
        given_cache: Mask of what caches of language models hold, unless a graph made it.
    """

    def __init__(self, count: int, texts: Sequence[str]) -> None:
        self.reached: Mask | None = None
        self.fresh = np.zeros(count, bool)
        self._texts = list(texts)
        self._place: dict[str, int] = {}
        self._as = {category: np.zeros(count, bool) for category in IDENTITY}
        self._names = {category: np.full(count, NO_NAME, np.int64) for category in IDENTITY}
        self._around = np.full(count, NO_NAME, np.int64)
        self._held = np.full(count, NO_NAME, np.int64)
        self._made = np.full(count, NO_NAME, np.int64)
        self._cached = np.full(count, NO_NAME, np.int64)
        self.given_cache = np.zeros(count, bool)

    def add(self, category: Category, rows: Ints, names: Ints) -> None:
        """Record allocations as members of a category.

        A later name replaces an earlier one.
        """
        self._as[category][rows] = True
        self._names[category][rows] = names

    def add_cache(self, rows: Ints, names: Ints, categories: Codes) -> None:
        """Record what caches of language models hold.

        Its name precedes all others, so that it is the same at every moment.
        """
        self._cached[rows] = names
        self.given_cache[rows[categories == Category.INPUTS]] = True

    def add_collective_results(self, rows: Ints, names: Ints) -> None:
        """Record a collective's results, whose names yield to any other.

        A saved input and a state dict have better names.
        """
        self._as[Category.COMMUNICATION][rows] = True
        self._made[rows] = names

    def clear_send_buffers(self, what: str) -> None:
        """Clear the other categories of buffers that a collective sends from.

        Gradients and user tensors are slices of such a buffer during that time.
        """
        selected = self._names[Category.COMMUNICATION]
        sent = np.isin(selected, [n for n, text in enumerate(self._texts) if what in text])
        for category in (Category.GRADIENTS, Category.USER_TENSORS):
            self._as[category][sent] = False
            self._names[category][sent] = NO_NAME

    def add_local_names(self, rows: Ints, names: Ints) -> None:
        """Record the names of allocations in running functions.

        The notebook's own names take precedence.
        """
        self._as[Category.USER_TENSORS][rows] = True
        self._around[rows] = names

    def add_holders(self, rows: Ints, kinds: Ints, ways: Sequence[str]) -> None:
        """Record the holders of allocations at one moment.

        It is the end, or the return of a function.

        Args:
            rows: The allocations.
            kinds: Kind of the best holder of each.
            ways: Path of that holder, with the tensor's shape and dtype.
        """
        if self.reached is None:
            self.reached = np.zeros(len(self._held), bool)
        self.reached[rows] = True
        self._as[Category.USER_TENSORS][rows[np.isin(kinds, _PERSONS)]] = True
        for row, kind, way in zip(rows.tolist(), kinds.tolist(), ways, strict=True):
            if kind not in _NO_NAMES:
                self._held[row] = self._index(way)

    def set_names(self, names: Mapping[int, str]) -> None:
        """Name allocations that no probe recorded, by row."""
        for row, name in names.items():
            self._made[row] = self._index(name)

    @property
    def variables(self) -> tuple[Mask, Ints]:
        """Mask of allocations that may be a variable's, and their names.

        These are allocations recorded as user tensors, as buffers or not at all. A buffer that a
        forward reassigns is treated as a variable.
        """
        selected = np.any([self._as[category] for category in _ASSIGNED], axis=0)
        names = np.full(len(selected), NO_NAME, np.int64)
        own = (self._names[category] for category in _ASSIGNED)
        for known in (self._held, self._around, *own):
            names = np.where(selected & (known != NO_NAME), known, names)
        others = [seen for category, seen in self._as.items() if category not in _ASSIGNED]
        return ~np.any(others, axis=0), names

    def set_growing_variables(self, rows: Mapping[int, int]) -> None:
        """Record allocations as the growing variable that others belong to.

        The name is given without shape and dtype, which differ between allocations.
        """
        _, names = self.variables
        for row, known in rows.items():
            if row == known:
                continue
            is_buffer = self._as[Category.BUFFERS][known]
            self._as[Category.BUFFERS if is_buffer else Category.USER_TENSORS][row] = True
            self._made[row] = self._index(without_shape(self._texts[names[known]]))

    def _index(self, text: str) -> int:
        place = self._place.setdefault(text, len(self._texts))
        if place == len(self._texts):
            self._texts.append(printable_text(text))
        return place

    @property
    def texts(self) -> tuple[str, ...]:
        """The session's names, followed by those composed here."""
        return tuple(self._texts)

    def observed(self, category: Category) -> Mask:
        """Return the mask of the allocations recorded as a category.

        Repetitions in other passes do not count.
        """
        return self._as[category]

    @property
    def unseen(self) -> Mask:
        """Mask of the allocations that no probe recorded."""
        seen: Mask = np.any(list(self._as.values()), axis=0)
        return ~seen

    def shared_categories(self, representative: Ints) -> dict[Category, Mask]:
        """Return a mask per category, shared among repeated allocations.

        An allocation recorded as an input does not become a weight, gradient or state through its
        repetitions. Example: the image that a loop starts from has the size of the image that it
        optimizes.
        """
        return {
            category: spread_to_repeats(mask, representative) & (mask | self._open_to(category))
            for category, mask in self._as.items()
        }

    def _open_to(self, category: Category) -> Mask:
        if category not in OF_TRAINING:
            return np.ones(len(self._held), bool)
        itself = (category, Category.USER_TENSORS)
        seen: Mask = np.any([mask for c, mask in self._as.items() if c not in itself], axis=0)
        return ~seen

    def shared_names(self, representative: Ints) -> Ints:
        """Return each allocation's name, its own or that of a repetition.

        Of several repetitions, the latest pass gives the name. NO_NAME if there is none.
        """
        names = np.full(len(representative), NO_NAME, np.int64)
        known = [(n, self._open_to(c)) for c, n in self._names.items() if c not in _OF_A_CALL]
        # unlike `input args[0]`, a name from the user's code is informative
        rest = (self._around, *(self._names[c] for c in _OF_A_CALL), self._held, self._made)
        anybody = np.ones(len(representative), bool)
        sure = (self._cached, anybody)
        for own, may_share in (sure, *known, *((one, anybody) for one in rest)):
            shared = np.full(len(representative), NO_NAME, np.int64)
            there = np.flatnonzero(own != NO_NAME)
            shared[representative[there]] = own[there]
            found = np.where((own == NO_NAME) & may_share, shared[representative], own)
            names = np.where(names == NO_NAME, found, names)
        return names


def spread_to_repeats(mask: Mask, representative: Ints) -> Mask:
    """Extend a mask to all allocations that repeat one in it."""
    among = np.zeros(len(mask), bool)
    among[representative[mask]] = True
    found: Mask = among[representative]
    return found


def observations_of(
    allocations: Allocations, trace: DeviceTrace, names: tuple[str, ...]
) -> Observations:
    """Assign what was seen at addresses and positions to allocations."""
    seen = Observations(len(allocations), names)
    storage_labels, holders, events = trace.storage_labels, trace.holders, len(trace.events)
    rows = rows_at(allocations, storage_labels.addr, storage_labels.position, events)
    between = (storage_labels.position > 0) & (storage_labels.position < events)
    between &= storage_labels.category == Category.USER_TENSORS
    around = np.flatnonzero((rows >= 0) & between)
    seen.add_local_names(rows[around], storage_labels.name[around])
    made = np.isin(
        storage_labels.name, [n for n, text in enumerate(names) if text.startswith(DTENSOR)]
    )
    made &= (rows >= 0) & (storage_labels.category == Category.COMMUNICATION)
    seen.add_collective_results(rows[made], storage_labels.name[made])
    of_cache = np.isin(
        storage_labels.name, [n for n, text in enumerate(names) if text.startswith(f"{KV_CACHE} ")]
    )
    of_cache &= rows >= 0
    seen.add_cache(rows[of_cache], storage_labels.name[of_cache], storage_labels.category[of_cache])
    for category in IDENTITY:
        selected = np.flatnonzero(
            (rows >= 0) & (storage_labels.category == category) & ~between & ~made
        )
        seen.add(category, rows[selected], storage_labels.name[selected])
    given = np.flatnonzero((rows >= 0) & (storage_labels.category == Category.INPUTS))
    seen.fresh = _fresh(
        allocations, rows[given], storage_labels.position[given], trace.counter_samples.position
    )
    if trace.before_return is not None:
        then = trace.before_return.holders, trace.before_return.event
        _add_holders(seen, allocations, then, names, events)
    if holders is not None:
        _add_holders(seen, allocations, (holders, events), names, events)
    seen.clear_send_buffers(ZERO_BUCKET)
    return seen


def _add_holders(
    seen: Observations,
    allocations: Allocations,
    held_at: tuple[Holders, int],
    names: tuple[str, ...],
    events: int,
) -> None:
    """Assign the holders at one event to allocations."""
    held, event = held_at
    best = np.unique(held.addr, return_index=True)[1]  # a storage's best holder is first
    rows = rows_at(allocations, held.addr[best], np.full(len(best), event), events)
    best, rows = best[rows >= 0], rows[rows >= 0]
    ways = zip(held.path[best].tolist(), held.form[best].tolist(), strict=True)
    texts = [f"{names[path]} {names[form]}".rstrip() for path, form in ways]
    seen.add_holders(rows, held.kind[best].astype(np.int64), texts)


def _fresh(allocations: Allocations, rows: Ints, given: Ints, counter_samples: Ints) -> Mask:
    """Select inputs allocated after the last call before their first use.

    The end of each call is a counter sample.

    Args:
        allocations: Every allocation of the recording.
        rows: What modules were given.
        given: The position at the end of each such call.
        counter_samples: Positions of the counter samples, ascending.
    """
    first = np.full(len(allocations), np.iinfo(np.int64).max)
    np.minimum.at(first, rows, given)
    fresh = np.zeros(len(allocations), bool)
    selected = np.unique(rows)
    before, until = np.searchsorted(
        counter_samples, [allocations.allocated_at[selected], first[selected]], side="right"
    )
    fresh[selected] = (allocations.allocated_at[selected] >= 0) & (
        until - before == 1
    )  # the end of the first call itself
    return fresh


def rows_at(allocations: Allocations, addr: Ints, position: Ints, events: int) -> Ints:
    """Return the allocation that lived at each address at a position.

    The value is -1 if none did.
    """
    if not len(allocations):
        return np.full(len(addr), -1, np.int64)
    addrs, place = np.unique(allocations.addr, return_inverse=True)
    width = events + 3
    keys = place * width + allocations.allocated_at + 1
    order = np.argsort(keys)
    at = np.minimum(np.searchsorted(addrs, addr), len(addrs) - 1)
    wanted = at * width + position  # allocated before the position: born + 1 <= position
    index = np.searchsorted(keys[order], wanted, side="right") - 1
    row = order[np.maximum(index, 0)]
    lives = (
        (index >= 0)
        & (allocations.addr[row] == addr)
        & (allocations.allocated_at[row] < position)
        & (allocations.freed[row] >= position)
    )
    return np.where(lives, row, -1)
