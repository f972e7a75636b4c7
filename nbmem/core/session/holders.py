"""Objects that keep storages alive, decoded from the columns of `Holders`.

for held in held_storages(session, device):   # largest first, each storage once
    held.size, held.form, held.holders        # "(1000, 1000) float32", the paths that reach it
for root in roots(session, device):           # what one `del` would free
    root.name, root.kind, root.alone          # "checkpoint", HolderKind.NAME, 489_123_840
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceTrace, Holders, Session


RUN_BEFORE = "the failed run before"
"""A run whose exception has been replaced by that of a later one."""


class HolderKind(IntEnum):
    """The kind of root that keeps a storage alive, most informative first."""

    NAME = 0
    OUT = 1
    UNDERSCORE = 2
    TRACEBACK = 3
    CLOSURE = 4
    GENERATOR = 5
    DATALOADER = 6
    GRAPH = 7
    FRAME = 8
    THREAD = 9
    MODULE = 10
    CYCLE = 11
    UNSEEN = 12
    GRADIENT_CYCLE = 13

    @property
    def label(self) -> str:
        """The kind's display name."""
        return LABELS[self]


_KINDS = tuple(HolderKind)
LABELS: dict[HolderKind, str] = {
    HolderKind.NAME: "a name of the notebook",
    HolderKind.OUT: "IPython's Out",
    HolderKind.UNDERSCORE: "IPython's _, __ or ___",
    HolderKind.TRACEBACK: "the traceback of a failed cell",
    HolderKind.CLOSURE: "a variable that a function closes over",
    HolderKind.GENERATOR: "a local of a suspended generator or coroutine",
    HolderKind.DATALOADER: "a DataLoader's iterator",
    HolderKind.GRAPH: "the graph of a tensor",
    HolderKind.FRAME: "a local of a function that runs, or the value of a statement",
    HolderKind.THREAD: "a local of another thread",
    HolderKind.MODULE: "a global of an imported module",
    HolderKind.CYCLE: "a reference cycle that nothing else reaches",
    HolderKind.UNSEEN: "nothing that Python's garbage collector can see",
    HolderKind.GRADIENT_CYCLE: "a gradient whose graph leads back to its parameter",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """One path by which a storage is reached.

    Attributes:
        kind: What keeps it alive.
        root: The start of the path, as one would delete it: `checkpoint`, `Out[12]`, `the traceback
            of ValueError`. Equal roots stand for one object.
        path: The whole path: `checkpoint['model']['layer.0.weight']`, `local x of train() in the
            traceback of ValueError`, `the graph of losses[3]`.
    """

    kind: HolderKind
    root: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStorage:
    """One live storage, however many tensors and views share it.

    Attributes:
        addr: Its address.
        size: Its bytes.
        form: Shape and dtype of the widest tensor on it: `(64, 3, 7, 7) float32`; "" if it has no
            Python object (a tensor that only a graph has).
        holders: One for each root that keeps it alive, the best first; never empty.
    """

    addr: int
    size: int
    form: str
    holders: tuple[Holder, ...]

    @property
    def name(self) -> str:
        """The best of the storage's paths."""
        return self.holders[0].path

    def name_in(self, root: str) -> str:
        """Return the path from one root to the storage."""
        return next((way.path for way in self.holders if way.root == root), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Everything that one root keeps.

    Attributes:
        kind: How it keeps most of its bytes alive: a list of losses does so by their graphs.
        name: Its name.
        reached: Bytes of all storages that it reaches.
        alone: Bytes of the storages that only this root reaches: releasing it frees them.
        storages: The storages that it reaches, largest first.
    """

    kind: HolderKind
    name: str
    reached: int
    alone: int
    storages: tuple[HeldStorage, ...]


def held_storages(session: Session, device: DeviceTrace) -> tuple[HeldStorage, ...] | None:
    """List the storages that were live at the end, largest first.

    The result is None if holders were not recorded.
    """
    if device.holders is None:
        return None
    return storages_of(device.holders, session.names)


def roots(session: Session, device: DeviceTrace) -> tuple[Root, ...] | None:
    """List what each root keeps alive, the one that frees most first.

    The result is None if holders were not recorded.
    """
    storages = held_storages(session, device)
    return None if storages is None else roots_of(storages)


def storages_of(holders: Holders, names: tuple[str, ...]) -> tuple[HeldStorage, ...]:
    """Decode the storages in the columns, largest first."""
    ways: dict[tuple[int, int, int], list[Holder]] = {}
    for addr, size, form, kind, root, path in zip(
        *(
            getattr(holders, name).tolist()
            for name in ("addr", "size", "form", "kind", "root", "path")
        ),
        strict=True,
    ):
        holder = Holder(_KINDS[kind], names[root], names[path])
        ways.setdefault((addr, size, form), []).append(holder)
    found = [
        HeldStorage(addr=addr, size=size, form=names[form], holders=tuple(found))
        for (addr, size, form), found in ways.items()
    ]
    return tuple(sorted(found, key=lambda held: (-held.size, held.addr)))


def roots_of(storages: tuple[HeldStorage, ...]) -> tuple[Root, ...]:
    """Group storages by root, the root that frees most first."""
    reached: dict[str, list[HeldStorage]] = {}
    for held in storages:
        for name in dict.fromkeys(holder.root for holder in held.holders):
            reached.setdefault(name, []).append(held)
    found = [_root(name, mine) for name, mine in reached.items()]
    return tuple(sorted(found, key=lambda root: (-root.alone, -root.reached, root.name)))


def _root(name: str, storages: list[HeldStorage]) -> Root:
    kinds: Counter[HolderKind] = Counter()
    for held in storages:
        kinds[next(holder.kind for holder in held.holders if holder.root == name)] += held.size
    return Root(
        kind=kinds.most_common(1)[0][0],
        name=name,
        reached=sum(held.size for held in storages),
        alone=sum(h.size for h in storages if all(way.root == name for way in h.holders)),
        storages=tuple(storages),
    )
