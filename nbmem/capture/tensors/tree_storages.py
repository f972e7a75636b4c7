"""Keep a module's storages as columns while the module is unchanged."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.capture.tensors.module_tree import ModuleTree

_ADDRESS_BITS = 64

_kinds: dict[Any, str] = {}


def kind_of(device: Any) -> str:
    """Return a device's type, from a cache.

    torch creates a new string each time, which takes a microsecond.
    """
    kind = _kinds.get(device)
    if kind is None:
        kind = _kinds[device] = str(device.type)
    return kind


def key_of(index: int, addr: int) -> int:
    """Return one number for a device index and an address.

    The numbers sort by index, then by address.
    """
    return index << _ADDRESS_BITS | addr


def storages_of(
    torch: Any, tree: ModuleTree, kind: str
) -> Iterator[tuple[Any, Any, tuple[int, int, int]]]:
    """Yield a tree's tensors in one kind of memory, with their storages.

    Args:
        torch: The user's torch.
        tree: A tree whose tensors are all of torch's own classes.
        kind: torch's name for the memory.

    Yields:
        The tensor, its storage, and index of the device, address and bytes.
    """
    storage_of = torch.Tensor.untyped_storage
    for tensor in tree.tensors():
        storage = storage_of(tensor)
        device, addr, size = storage.device, storage.data_ptr(), storage.nbytes()
        if addr and size and kind_of(device) == kind:
            yield tensor, storage, (device.index or 0, addr, size)


class TreeStorages:
    """The storages of one kind of memory in a tree; holds none of them.

    Each is listed once, by address.

    Args:
        torch: The user's torch.
        tree: The tree.
        kind: torch's name for the memory.

    Attributes:
        keys: The `key_of` of each, ascending.
        device, addr, size: The index of its device, its address, its bytes.
        shared: Whether other processes can map it: 1 or 0.
        identities: Numbers that identify storages while one of `refs` exists.
        refs: torch's weak references.
        are_apart: Whether no two of them share memory.
    """

    def __init__(self, torch: Any, tree: ModuleTree, kind: str) -> None:
        kinds = torch.UntypedStorage
        self._free = kinds._free_weak_ref  # noqa: SLF001
        found = {
            storage._cdata: (*place, kinds.is_shared(storage), storage._weak_ref())  # noqa: SLF001
            for storage, place in _each_once(storages_of(torch, tree, kind))
        }
        order = sorted(found, key=lambda identity: found[identity][:2])
        columns = list(zip(*(found[identity] for identity in order), strict=True)) or [()] * 5
        self.device, self.addr, self.size = (array("q", column) for column in columns[:3])
        self.shared = array("q", map(int, columns[3]) if kind == "cpu" else [0] * len(order))
        self.identities = order
        self.refs: list[int] = list(columns[4])
        self.keys = [key_of(*place) for place in zip(self.device, self.addr, strict=True)]
        ends = (key + size for key, size in zip(self.keys, self.size, strict=True))
        self.are_apart = all(end <= key for end, key in zip(ends, self.keys[1:], strict=False))

    def __len__(self) -> int:
        """Return the number of storages."""
        return len(self.keys)

    def lie_at(self, key: int, size: int) -> bool:
        """Return whether one of the storages overlaps memory at a key."""
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] < key + size:
            return True
        return at > 0 and self.keys[at - 1] + self.size[at - 1] > key

    def __del__(self) -> None:
        """Free the weak references."""
        while self.refs:
            self._free(self.refs.pop())


def _each_once(found: Iterator[tuple[Any, Any, Any]]) -> Iterator[tuple[Any, Any]]:
    seen = set()
    for _, storage, place in found:
        identity = storage._cdata  # noqa: SLF001
        if identity not in seen:
            seen.add(identity)
            yield storage, place
