"""Which storages live where no allocator keeps a history: each from first seen to found gone.

Every storage that the probes look at is met. A weak reference of torch's own says later whether it
still lives: it keeps 100 bytes of torch's and none of the data, and may be asked in any thread.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, insort
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.probes.node_numbers import NodeNumbers, made_at

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbmem.probes.devices import Device

MAX_MET = 200_000
"""Storages of one recording, 15 MiB. Later ones are not followed (a note says so)."""
ALIVE = -1
"""The mark at which a storage was found gone that never was."""


class Met(NamedTuple):
    """The storages that were met, as columns in the order of their first look.

    Attributes:
        device: Its index.
        addr: Address.
        size: Bytes.
        first: The mark at which it is first known to have lived.
        gone: The mark at which it was first found gone; ALIVE where it never was.
        shared: Whether other processes can map it, too (`share_memory_`, a mapped file): 1 or 0.
    """

    device: array[int]
    addr: array[int]
    size: array[int]
    first: array[int]
    gone: array[int]
    shared: array[int]


class Roll:
    """Keeps the roll of one kind of memory; holds nothing that is on it.

    Args:
        torch: The user's torch.
        device: The kind of memory.

    Attributes:
        kind: torch's name for it.
        since: The mark at which what is met next was there already.
        numbers: Tells at which mark a graph's node was there.
        grows: Whether what is met for the first time is put on it.
        full: Whether later storages were left out.
        over: Whether a card is used by now: what is looked at is on that.
        living: Bytes of what is on it and lives, by index of the device.
    """

    def __init__(self, torch: Any, device: Device) -> None:
        self.device = device
        self.kind = device.kind
        self.since: int | None = None
        self.numbers = NodeNumbers(torch)
        self.grows = True
        self.full = False
        self.over = False
        self.living: dict[int, int] = {}
        self.met = Met(*(array("q") for _ in Met._fields))
        self._mark = 0
        self._torch = torch
        self._entries: dict[tuple[int, int], _Entry] = {}  # by index and address
        self._known: dict[int, tuple[int, int, _Entry]] = {}  # by storage: where, and how large
        self._first: dict[tuple[int, int], int] = {}  # a weak reference that may tell it all
        self._sorted: list[tuple[int, int]] = []
        self._lock = threading.RLock()  # marks are taken in any thread

    def meet(self, index: int, storage: Any, addr: int, size: int) -> tuple[int, int, int]:
        """Put a storage on the roll; returns its device's place in identities, address, bytes.

        Two storages may share memory (numpy's): the larger is counted, for as long as one lives.
        """
        place = index, addr
        with self._lock:
            identity = storage._cdata  # noqa: SLF001 - unique while a weak reference is kept
            known = self._known.get(identity)
            if known is None or known[:2] != (addr, size):
                if known is not None:
                    self._moved(identity, known[2])
                entry = self._around(place, size) or self._new(place, size, storage)
                if entry is not None:
                    entry.refs[identity] = ref = storage._weak_ref()  # noqa: SLF001
                    self._first.setdefault(entry.place, ref)
                    self._known[identity] = addr, size, entry
        return -1 - index, addr, size

    def _moved(self, identity: int, entry: _Entry) -> None:
        """A storage was resized: it lies elsewhere now, or is of another size."""
        if len(entry.refs) == 1:
            self._remove(entry.place, entry)
        else:
            del self._known[identity]
            self._free(entry.refs.pop(identity))
            self._first[entry.place] = next(iter(entry.refs.values()))

    def _around(self, place: tuple[int, int], size: int) -> _Entry | None:
        """What lives already where a storage lies, wholly or partly: its bytes count once."""
        at = bisect_left(self._sorted, place)
        for near in self._sorted[max(0, at - 1) : at + 1]:
            entry = self._entries[near]
            apart = near[1] + entry.size <= place[1] or place[1] + size <= near[1]
            if near[0] == place[0] and not apart:
                return entry
        return None

    def _new(self, place: tuple[int, int], size: int, storage: Any) -> _Entry | None:
        columns = self.met
        if not self.grows:
            return None
        if len(columns.addr) >= MAX_MET:
            self.full = True
            return None
        entry = self._entries[place] = _Entry(place, len(columns.addr), size)
        insort(self._sorted, place)
        self.living[place[0]] = self.living.get(place[0], 0) + size
        first = self._mark if self.since is None else min(self.since, self._mark)
        shared = self.kind == "cpu" and bool(self._torch.UntypedStorage.is_shared(storage))
        for column, value in zip(columns, (*place, size, first, ALIVE, shared), strict=True):
            column.append(value)
        return entry

    def sweep(self, mark: int) -> None:
        """Find what is gone at a mark; what is met from now on was first seen at it."""
        self.numbers.at_mark(mark)
        with self._lock:
            self._mark = mark
            gone = self._torch.UntypedStorage._expired  # noqa: SLF001
            for place in list(compress(self._first, map(gone, self._first.values()))):
                entry = self._entries[place]
                left = [ref for ref in entry.refs.values() if not gone(ref)]
                if left:
                    self._first[place] = left[0]
                else:
                    self._remove(place, entry)

    def storages(self) -> dict[tuple[int, int], int]:
        """Bytes of what is on it and lives, by its device's place in identities and its address."""
        with self._lock:
            return {(-1 - i, addr): one.size for (i, addr), one in self._entries.items()}

    def _remove(self, place: tuple[int, int], entry: _Entry) -> None:
        self.met.gone[entry.row] = self._mark
        self.living[place[0]] -= entry.size
        del self._entries[place], self._first[place]
        del self._sorted[bisect_left(self._sorted, place)]
        self._let_go(entry)

    def _let_go(self, entry: _Entry) -> None:
        while entry.refs:
            identity, ref = entry.refs.popitem()
            del self._known[identity]
            self._free(ref)

    def _free(self, ref: int) -> None:
        self._torch.UntypedStorage._free_weak_ref(ref)  # noqa: SLF001

    def close(self) -> None:
        """Let go of every weak reference; what is on the roll stays written."""
        with self._lock:
            for entry in self._entries.values():
                self._let_go(entry)
            self._entries.clear()
            self._first.clear()
            self._sorted.clear()


class _Entry:
    """A storage that lives: its row, its bytes, a weak reference for each owner of its memory."""

    __slots__ = ("place", "refs", "row", "size")

    def __init__(self, place: tuple[int, int], row: int, size: int) -> None:
        self.place = place
        self.row = row
        self.size = size
        self.refs: dict[int, int] = {}


_followed: list[Roll] = []
"""The roll on which what is looked at just now is written, if any."""


def followed() -> Roll | None:
    """The roll that is kept at this moment; it may be over since the hook that runs was called."""
    return _followed[-1] if _followed and not _followed[-1].over else None


class _Following:
    """While it is entered, a roll is written on; a class, for it is entered at each turn."""

    __slots__ = ("_roll",)

    def __init__(self, roll: Roll | None) -> None:
        self._roll = roll

    def __enter__(self) -> None:
        if self._roll is not None:
            _followed.append(self._roll)

    def __exit__(self, *_raised: object) -> None:
        if self._roll is not None:
            _followed.pop()


def following(roll: Roll | None) -> AbstractContextManager[None]:
    """Write on a roll what is looked at meanwhile; of CUDA's cards with None."""
    return _Following(roll)


class there_with:  # noqa: N801 - a context manager, read as the function that it would be
    """What is met meanwhile was there when a graph's node was made: it has it, or has made it.

    A class, for it is entered at each node and each tensor of a graph.

    Args:
        node: The node; None leaves what is met where it is met.
    """

    __slots__ = ("_before", "_node", "_roll")

    def __init__(self, node: Any) -> None:
        self._node = node

    def __enter__(self) -> None:
        self._roll = roll = None if self._node is None else followed()
        mark = None if roll is None else roll.numbers.mark_behind(made_at(self._node))
        if roll is None or mark is None:
            self._roll = None
            return
        self._before = roll.since
        roll.since = mark if roll.since is None else min(roll.since, mark)

    def __exit__(self, *_raised: object) -> None:
        if self._roll is not None:
            self._roll.since = self._before
