"""Everything that a set of objects reaches, each once, in pieces that are read at C's speed.

A million objects are too many for a loop in Python. So they are taken in pieces of a thousand, and
of a piece only this is noted: what it saw first, and what it saw again. Which object of a piece
refers to which is asked later, and only of the pieces that lead to a tensor.
"""

from __future__ import annotations

import gc
from collections import deque
from itertools import chain, compress
from operator import not_
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbmem.probes.holders.graphs import Graphs, is_node
from nbmem.probes.holders.objects import mro_of, namespace_of
from nbmem.probes.holders.storages import dispatches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

PIECE = 1024
"""Objects that are asked together."""
DEPTH = 3
"""Levels of containers inside rows of data that are looked through without being noted."""

FOREIGN = ("IPython", "ipykernel", "traitlets", "zmq", "tornado", "nbmem", "_pytest", "pluggy")
"""Objects of these packages lead to the whole notebook again, or are ours."""

BARRED = -1
_START = -2


class Reach:
    """Walks forward.

    Args:
        torch: The user's torch.
        barred: Objects that are not entered: the notebook's and the modules' dictionaries.
        cut: References that are passed over, as the ids of their two ends.
    """

    def __init__(
        self, torch: Any, barred: Iterable[object], cut: Collection[tuple[int, int]] = ()
    ) -> None:
        self.tensors: dict[int, Any] = {}
        self._torch = torch
        self._graphs = Graphs(torch)
        self._pieces: list[list[Any]] = []
        self._piece_of: dict[int, int] = {id(thing): BARRED for thing in barred}
        self._seen_again: dict[int, list[int]] = {}
        self._links: dict[int, list[Any]] = {}
        self._kinds: dict[type, str] = {}
        self._cut: dict[int, set[int]] = {}
        for source, target in cut:
            self._cut.setdefault(source, set()).add(target)

    def noted(self, things: Sequence[Any]) -> set[int]:
        """Ids of those among some objects that were reached and may lead on."""
        return set(filter(self._piece_of.__contains__, map(id, things)))

    def others(self, things: Sequence[Any]) -> list[Any]:
        """Those among some objects that were neither reached nor barred."""
        return list(compress(things, map(not_, map(self._piece_of.__contains__, map(id, things)))))

    def walk(self, starts: Iterable[object]) -> None:
        """Go forward from some objects."""
        pending: deque[list[Any]] = deque()
        self._admit(list(starts), _START, pending)
        while pending:
            piece = pending.popleft()
            index = len(self._pieces)
            self._pieces.append(piece)
            self._admit(self._referents(piece), index, pending)

    def referents(self, thing: Any) -> list[Any]:
        """What an object refers to, its graph included."""
        found = gc.get_referents(thing)
        found.extend(self._links.get(id(thing), ()))
        cut = self._cut.get(id(thing))
        return [inner for inner in found if id(inner) not in cut] if cut else found

    def is_barred(self, kind: type) -> bool:
        """Whether objects of a class are never entered."""
        return self._kind(kind) == "barred"

    def pieces_of(self, key: int) -> list[int]:
        """The pieces that refer to an object."""
        first = self._piece_of.get(key, BARRED)
        return ([first] if first >= 0 else []) + self._seen_again.get(key, [])

    def piece(self, index: int) -> list[Any]:
        """The objects of a piece."""
        return self._pieces[index]

    def _referents(self, piece: list[Any]) -> list[Any]:
        if self._cut and not self._cut.keys().isdisjoint(map(id, piece)):
            inner = chain.from_iterable(map(self.referents, piece))
            return [thing for thing in inner if gc.is_tracked(thing)]
        found = list(filter(gc.is_tracked, gc.get_referents(*piece)))
        if self._links:
            links = self._links
            found.extend(chain.from_iterable(links[i] for i in map(id, piece) if i in links))
        return found

    def _admit(self, found: list[Any], index: int, pending: deque[list[Any]]) -> None:
        """Note what a piece saw, and line up what nobody saw before."""
        if len(found) > PIECE:
            slices = (found[i : i + PIECE] for i in range(0, len(found), PIECE))
            found = [thing for part in slices if not self._leads_nowhere(part) for thing in part]
        by_id = dict(zip(map(id, found), found, strict=True))
        # Not `keys() - keys()`: that would go through all that was ever seen.
        new = set(by_id).difference(self._piece_of)
        for key in set(by_id).difference(new):
            if self._piece_of[key] != BARRED:
                self._seen_again.setdefault(key, []).append(index)
        self._piece_of.update(dict.fromkeys(new, index))
        fresh = [thing for key, thing in by_id.items() if key in new]
        plain = self._plain(fresh)
        fresh = [thing for thing in fresh if type(thing) in plain or self._enter(thing)]
        pending.extend(fresh[i : i + PIECE] for i in range(0, len(fresh), PIECE))

    def _leads_nowhere(self, part: list[Any], depth: int = 0) -> bool:
        """Whether these are a thousand rows of data or the like: nothing that could hold a tensor.

        They are not even noted, for noting takes the most time.
        """
        kinds = set(map(type, part))
        if kinds - self._plain(part):
            if any(self._kind(kind) not in {"plain", "barred"} for kind in kinds):
                return False
            part = [thing for thing in part if self._kinds[type(thing)] == "plain"]
        inner = list(filter(gc.is_tracked, gc.get_referents(*part)))
        if not inner:
            return True
        if depth == DEPTH or len(inner) > 8 * PIECE:
            return False
        by_id = dict(zip(map(id, inner), inner, strict=True))
        known = self._piece_of.keys() & by_id.keys()
        if any(self._piece_of[key] != BARRED for key in known):
            return False  # a way to what was seen before is worth noting
        return self._leads_nowhere([by_id[k] for k in by_id if k not in known], depth + 1)

    def _plain(self, things: list[Any]) -> set[type]:
        """Which classes among some objects need no reading of their own."""
        return {kind for kind in set(map(type, things)) if self._kind(kind) == "plain"}

    def _enter(self, thing: Any) -> bool:
        """Read what the garbage collector cannot; False for what leads nowhere."""
        kind, key = self._kind(type(thing)), id(thing)
        if kind == "barred":
            self._piece_of[key] = BARRED
            return False
        if kind == "tensor":
            self.tensors[key] = thing
            self._links[key] = self._graphs.of_tensor(thing)
            if not dispatches(self._torch, type(thing)):
                self._links[key] += self._graphs.of_sparse(thing)
        elif kind == "storage":
            self.tensors[key] = thing
        elif kind == "node":
            self._links[key] = self._graphs.of_node(thing)
        elif kind == "array" and thing.dtype.hasobject:
            self._links[key] = thing.ravel().tolist()
        return True

    def _kind(self, kind: type) -> str:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = self._kind_of(kind)
        return found

    def _kind_of(self, kind: type) -> str:
        bases = mro_of(kind)
        if type in bases or ModuleType in bases:
            return "barred"
        if self._torch.Tensor in bases:
            return "tensor"
        if kind is self._torch.UntypedStorage:
            return "storage"
        module = namespace_of(kind).get("__module__")
        if type(module) is str and module.partition(".")[0] in FOREIGN:
            return "barred"
        if module == "numpy" and kind.__name__ == "ndarray":
            return "array"
        return "node" if is_node(kind) else "plain"
