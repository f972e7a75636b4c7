"""Track storages that no allocator history covers, by weak reference.

Each storage that nbmem reads is registered from its first observation until it was found freed. A
weak reference of torch's own shows later whether the storage is still alive. It retains 100 bytes
of torch's and none of the data, and may be checked in any thread.

While a tensor of a storage is alive, so is the storage. Each storage is therefore guarded by a weak
reference to its tensor. A counter sample checks only storages whose tensor is freed. Changes that
this misses (`p.data = other`, `set_()`) are found by checking all storages, in `SHARE` of the time
and at the start and the end.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from nbmem.capture.tensors.sequence_numbers import SequenceNumbers
from nbmem.capture.tensors.tree_storages import TreeStorages, key_of, storages_of
from nbmem.core.runtime.clock import CLOCK

if TYPE_CHECKING:
    from nbmem.capture.devices import Device
    from nbmem.capture.tensors.module_tree import ModuleTree

MAX_MET = 200_000
"""Storages of one recording, 15 MiB. Later ones are not followed (with a note)."""
SHARE = 0.02
"""Fraction of the time that checking every storage may take."""
FEW = 256
"""Up to this many storages are all checked at every counter sample: ten microseconds."""
ALIVE = -1
"""The value of `freed_at` for a storage that was never found freed."""


class StorageColumns(NamedTuple):
    """The registered storages as columns, in the order of registration.

    Attributes:
        device: Index of its device.
        addr: Address.
        size: Bytes.
        first: The counter sample at which it is first known to have been alive.
        freed_at: The counter sample at which it was first found freed; ALIVE if it never was.
        shared: Whether other processes can map it as well (`share_memory_`, a mapped file): 1 or 0.
    """

    device: array[int]
    addr: array[int]
    size: array[int]
    first: array[int]
    freed_at: array[int]
    shared: array[int]


class StorageRegistry:
    """A registry of the storages in one kind of memory; holds none of them.

    A model's storages come by the thousand in each traced cell. They are therefore stored as
    numbers in columns and dictionaries: separate objects would trigger Python's collector.

    Attributes:
        kind: torch's name for this kind of memory.
        since: The counter sample at which storages that are registered next already existed.
        numbers: Returns the counter sample by which a graph's node existed.
        grows: Whether new storages are registered.
        full: Whether later storages were omitted.
        over: Whether a card is in use. Then storages are read on the card.
        live_bytes: Bytes of the registered storages that are alive, by index of the device.
        trees: Trees of modules whose tensors were registered, by id.
    """

    def __init__(self, torch: Any, device: Device) -> None:
        self.device = device
        self.kind = device.kind
        self.since: int | None = None
        self.numbers = SequenceNumbers(torch)
        self.grows = True
        self.full = False
        self.over = False
        self.live_bytes: dict[int, int] = {}
        self.trees: dict[int, ModuleTree] = {}
        self.columns = StorageColumns(*(array("q") for _ in StorageColumns._fields))
        self._sample = 0
        self._torch = torch
        self._storages = torch.UntypedStorage
        self._refs: list[int] = []  # torch's weak reference to the storage of each row
        self._lent = bytearray()  # whether the reference is a tree's, and not ours to free
        self._owner: list[int] = []  # its identity
        self._handed_on: dict[int, tuple[int, int]] = {}  # where the owner is, if elsewhere
        self._of_trees: list[tuple[ModuleTree, range]] = []
        self._more: dict[int, dict[int, tuple[int, int, int]]] = {}  # other storages in that memory
        self._rows: dict[int, int] = {}  # by storage
        self._at: dict[int, int] = {}  # live rows by device and address
        self._sorted: list[int] = []
        self._rows_to_check: dict[int, None] = {}  # rows whose tensor is unknown or freed
        self._guards: dict[int, _Guard] = {}
        self._unguarded: list[_Guard] = []  # guards whose tensors are freed
        self._all_due = 0.0
        self._lock = threading.RLock()  # samples are taken in any thread

    def register(
        self, index: int, storage: Any, addr: int, size: int, tensor: Any = None
    ) -> tuple[int, int, int]:
        """Register a storage; return its device identity, address and bytes.

        The identity is -1, -2, ... for the devices 0, 1, ... .

        Two storages may share memory (numpy's). The first one is counted while either of them is
        alive.

        Args:
            index: The device's index.
            storage: The storage.
            addr: Its address.
            size: Its bytes.
            tensor: A tensor of the storage; None if only the storage is known.
        """
        with self._lock:
            identity = storage._cdata  # noqa: SLF001 - unique while a weak reference exists
            row = self._rows.get(identity)
            if row is None or self._place_of(row, identity) != (addr, size):
                if row is not None:
                    self._moved(identity, row)
                row = self._put(index, addr, size, storage)
            unconfirmed = (
                row is not None and row in self._rows_to_check and self._owner[row] == identity
            )
            if row is not None and unconfirmed and tensor is not None:
                self._guards[row] = _Guard(tensor, self._unguarded.append, row)
                del self._rows_to_check[row]
        return -1 - index, addr, size

    def register_tree(self, tree: ModuleTree) -> None:
        """Register the storages of a module tree that lie in this memory.

        While its module is alive, they are checked only together with all storages.
        """
        if self.trees.get(id(tree)) is tree:
            return
        self.trees[id(tree)] = tree
        key = "storages", self.kind
        with self._lock:
            storages: TreeStorages | None = tree.remembered.get(key)
            if storages is None:
                storages = tree.remembered[key] = TreeStorages(self._torch, tree, self.kind)
            if not self._put_all(storages):
                for tensor, storage, place in storages_of(self._torch, tree, self.kind):
                    self.register(*place[:1], storage, *place[1:], tensor)
            elif len(storages):
                count = len(self.columns.addr)
                self._of_trees.append((tree, range(count - len(storages), count)))

    def _put_all(self, new: TreeStorages) -> bool:
        """Add a row for each storage of a tree, or none; return whether it did.

        Nothing is added if one of them is registered already or overlaps another storage. Nor is
        anything added if the registry takes no new storages or would be full.
        """
        columns, count = self.columns, len(new)
        begun = len(columns.addr)
        if not (self.grows and new.are_apart and begun + count <= MAX_MET):
            return False
        if not self._rows.keys().isdisjoint(new.identities) or self._overlaps(new):
            return False
        first = self._sample if self.since is None else min(self.since, self._sample)
        columns.device.extend(new.device)
        columns.addr.extend(new.addr)
        columns.size.extend(new.size)
        columns.first.extend(array("q", [first]) * count)
        columns.freed_at.extend(array("q", [ALIVE]) * count)
        columns.shared.extend(new.shared)
        rows = range(begun, begun + count)
        self._at.update(zip(new.keys, rows, strict=True))
        self._rows.update(zip(new.identities, rows, strict=True))
        self._sorted = sorted([*self._sorted, *new.keys])
        self._refs += new.refs
        self._owner += new.identities
        self._lent += b"\1" * count
        for index, size in zip(new.device, new.size, strict=True):
            self.live_bytes[index] = self.live_bytes.get(index, 0) + size
        return True

    def _overlaps(self, new: TreeStorages) -> bool:
        met = self.columns
        if len(self._at) > len(new):
            places = zip(new.device, new.addr, new.size, strict=True)
            return any(self._around(*place) is not None for place in places)
        return any(new.lie_at(key, met.size[row]) for key, row in self._at.items())

    def _place_of(self, row: int, identity: int) -> tuple[int, int]:
        """Return the address and bytes at which a storage was registered."""
        if self._owner[row] != identity:
            return self._more[row][identity][:2]
        return self._handed_on.get(row) or (self.columns.addr[row], self.columns.size[row])

    def _moved(self, identity: int, row: int) -> None:
        """Unregister a storage that was resized or has another address."""
        if self._owner[row] != identity:
            del self._rows[identity]
            self._free(self._more[row].pop(identity)[2])
        elif self._more.get(row):
            self._replace_owner(row)
        else:
            self._remove(row)

    def _put(self, index: int, addr: int, size: int, storage: Any) -> int | None:
        """Find or add the row of a storage's memory; None if it is left out."""
        identity = storage._cdata  # noqa: SLF001
        row = self._around(index, addr, size)
        if row is not None:
            ref = storage._weak_ref()  # noqa: SLF001
            self._more.setdefault(row, {})[identity] = addr, size, ref
            self._rows[identity] = row
            return row
        columns = self.columns
        if not self.grows:
            return None
        if len(columns.addr) >= MAX_MET:
            self.full = True
            return None
        row = len(columns.addr)
        key = key_of(index, addr)
        self._at[key] = self._rows[identity] = row
        self._rows_to_check[row] = None
        insort(self._sorted, key)
        self._refs.append(storage._weak_ref())  # noqa: SLF001
        self._lent.append(0)
        self._owner.append(identity)
        self.live_bytes[index] = self.live_bytes.get(index, 0) + size
        columns.device.append(index)
        columns.addr.append(addr)
        columns.size.append(size)
        columns.first.append(self._sample if self.since is None else min(self.since, self._sample))
        columns.freed_at.append(ALIVE)
        columns.shared.append(self.kind == "cpu" and bool(self._storages.is_shared(storage)))
        return row

    def _around(self, index: int, addr: int, size: int) -> int | None:
        """Return the row of a live storage that overlaps some memory, or None.

        The bytes of overlapping storages count once.
        """
        key = key_of(index, addr)
        row = self._at.get(key)
        if row is not None:
            return row
        ordered = self._sorted
        at = bisect_left(ordered, key)
        if at < len(ordered) and ordered[at] < key + size:
            return self._at[ordered[at]]
        if at:
            row = self._at[ordered[at - 1]]
            if ordered[at - 1] + self.columns.size[row] > key:
                return row
        return None

    def check_all_next(self) -> None:
        """Check every storage at the next sample, even if its tensor is alive."""
        self._all_due = 0.0

    def sweep(self, sample: int) -> None:
        """Find the storages that are gone at a counter sample.

        Storages that are registered from now on were first observed at this sample.
        """
        self.numbers.record_sample(sample)
        with self._lock:
            self._sample = sample
            while self._unguarded:
                guard = self._unguarded.pop()
                if self._guards.get(guard.row) is guard:
                    del self._guards[guard.row]
                    self._rows_to_check[guard.row] = None
            for one in [one for one in self._of_trees if one[0].ref() is None]:
                self._of_trees.remove(one)
                living = set(self._at.values())
                self._rows_to_check.update(dict.fromkeys(row for row in one[1] if row in living))
            begun = CLOCK.perf_counter()
            if begun < self._all_due and len(self._at) > FEW:
                self._check_rows(list(self._rows_to_check))
                return
            self._check_rows(list(self._at.values()))
            now = CLOCK.perf_counter()
            self._all_due = now + (now - begun) / SHARE

    def _check_rows(self, rows: list[int]) -> None:
        """Remove the rows, of those given, whose storages are gone."""
        expired = self._storages._expired  # noqa: SLF001
        refs = self._refs
        for row in list(compress(rows, map(expired, [refs[row] for row in rows]))):
            more = self._more.get(row, {})
            for identity in [one for one, (_, _, ref) in more.items() if expired(ref)]:
                del self._rows[identity]
                self._free(more.pop(identity)[2])
            if more:
                self._replace_owner(row)
            else:
                self._remove(row)

    def storages(self) -> dict[tuple[int, int], int]:
        """Return the bytes of live storages by device identity and address."""
        met = self.columns
        with self._lock:
            rows = list(self._at.values())
            return {(-1 - met.device[row], met.addr[row]): met.size[row] for row in rows}

    def _replace_owner(self, row: int) -> None:
        """Track another storage on the same memory in place of the owner.

        The owner was freed or resized.
        """
        del self._rows[self._owner[row]]
        if not self._lent[row]:
            self._free(self._refs[row])
        self._owner[row], (addr, size, self._refs[row]) = self._more[row].popitem()
        self._lent[row] = 0
        self._handed_on[row] = addr, size
        self._guards.pop(row, None)
        self._rows_to_check[row] = None

    def _remove(self, row: int) -> None:
        met = self.columns
        met.freed_at[row] = self._sample
        self.live_bytes[met.device[row]] -= met.size[row]
        key = key_of(met.device[row], met.addr[row])
        del self._at[key], self._sorted[bisect_left(self._sorted, key)]
        self._rows_to_check.pop(row, None)
        self._guards.pop(row, None)
        self._release_row(row)

    def _release_row(self, row: int) -> None:
        self._rows.pop(self._owner[row], None)
        if not self._lent[row]:
            self._free(self._refs[row])
        for identity, (_, _, ref) in self._more.pop(row, {}).items():
            del self._rows[identity]
            self._free(ref)

    def _free(self, ref: int) -> None:
        self._storages._free_weak_ref(ref)  # noqa: SLF001

    def close(self) -> None:
        """Release every weak reference; the columns stay."""
        with self._lock:
            for row in [r for r in self._at.values() if not self._lent[r] or r in self._more]:
                self._release_row(row)
            for kept in (self._at, self._rows, self._rows_to_check, self._guards, self.trees):
                kept.clear()
            for some in (self._sorted, self._unguarded, self._of_trees):
                some.clear()


class _Guard(weakref.ref[Any]):
    """A weak reference to a tensor that shows a row's storage.

    While the tensor is alive, so is the storage.
    """

    __slots__ = ("row",)
    row: int

    def __new__(cls, tensor: Any, on_freed: Callable[[_Guard], None], row: int) -> Self:
        """Watch a tensor; `on_freed` is called when it is freed, in any thread."""
        guard = super().__new__(cls, tensor, on_freed)
        guard.row = row
        return guard

    def __init__(self, tensor: Any, on_freed: Callable[[_Guard], None], _row: int) -> None:
        super().__init__(tensor, on_freed)  # type: ignore[call-arg]
