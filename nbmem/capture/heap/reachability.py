"""Find everything that a set of objects reaches, each object once.

A million objects are too many for a loop in Python. So they are grouped into pieces of a thousand,
which are read at C's speed. For each piece only the pieces to which it refers are recorded. Which
object refers to which is read later, and only for the pieces that lead to a tensor (paths.py). If
few objects wait (a linked list has one at a time), a piece is read object by object while it grows.

`gc.get_referrers` for each tensor would walk the whole heap each time. Pieces that contain only
data are not even recorded. Recording all that each piece refers to, repeatedly, made a graph of
400,000 objects take 12 s.
"""

from __future__ import annotations

import gc
from array import array
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import chain, compress, islice, repeat
from operator import not_
from typing import Any

from nbmem.capture.interpreter.class_kinds import Kind, Kinds
from nbmem.capture.tensors.autograd_graphs import Graphs
from nbmem.capture.tensors.tensor_storages import dispatches

PIECE = 1024
"""Objects that are read together."""
FEW = 24
"""Up to this many waiting objects are read faster one by one."""
AT_ONCE = 16 * PIECE
"""About this many references are read in one step; those of one large object are read at once."""
DEPTH = 3
"""Levels of containers inside rows of data that are read without being recorded."""
TRIES = 2
"""How often rows of the same classes may contain more than data before they are not checked
again."""
APART = 32
"""A piece with this many objects takes no objects found by the next one. Rows of data must not be
beside a model's layers, or each of them would be searched for paths to a tensor."""
SKIPPED = -1
_NEW = -2
_PLAIN = Kind.PLAIN
_ONLY_PLAIN = {Kind.PLAIN}
_NO_TENSORS = {Kind.PLAIN, Kind.SKIPPED}


class ForwardWalk:
    """A forward walk that holds each object it has noted.

    So an id remains valid.

    Args:
        torch: The user's torch.
        skipped: Objects that are not entered: the notebook's and the modules' dictionaries.
        cut: References that are skipped, as the ids of their two ends.

    Attributes:
        tensors: The tensors and storages that were reached, by id.
        graphs: The reader of the graphs that are reached.
    """

    def __init__(
        self,
        torch: Any,
        skipped: Iterable[object],
        cut: Collection[tuple[int, int]] = (),
    ) -> None:
        self.tensors: dict[int, Any] = {}
        self._torch = torch
        self.graphs = Graphs(torch)
        self._kinds = Kinds(torch)
        self._held = list(skipped)
        self._piece_of: dict[int, int] = {id(obj): SKIPPED for obj in self._held}
        self._pieces: list[list[Any]] = [[]]
        self._refers: list[array[int]] = []
        self._links: dict[int, list[Any]] = {}
        self._no_data: Counter[frozenset[int]] = Counter()
        self._take = FEW
        self._cut: dict[int, set[int]] = {}
        for source, target in cut:
            self._cut.setdefault(source, set()).add(target)

    def without_noted(self, objects: Sequence[Any]) -> list[Any]:
        """Return those of some objects that were neither reached nor skipped."""
        return list(
            compress(objects, map(not_, map(self._piece_of.__contains__, map(id, objects))))
        )

    def steps(self, starts: Iterable[object]) -> Iterator[None]:
        """Go forward from some objects, in steps of about a millisecond at most."""
        seen: set[int] = set()
        yield from self._admit(list(starts), seen)
        for piece in self._pieces:  # it grows meanwhile
            seen.clear()
            done = 0
            while done < len(piece):
                if len(piece) - done <= FEW:
                    done = yield from self._one_by_one(piece, done, seen)
                else:
                    part = piece[done : done + self._take]
                    done += len(part)
                    found = self._referents(part)
                    if len(found) > AT_ONCE and len(part) <= 4 * FEW:  # a large one among them
                        for obj in part:
                            yield from self._admit(self._referents([obj]), seen)
                    else:
                        yield from self._admit(found, seen)
                    self._adapt(len(part), len(found))
                yield
            seen -= {SKIPPED, _NEW}
            self._refers.append(array("q", seen))
            if len(self._pieces[-1]) >= APART and self._pieces[-1] is not piece:
                self._pieces.append([])

    def referents(self, obj: Any) -> list[Any]:
        """Return what an object refers to, its graph included."""
        found = gc.get_referents(obj)
        found.extend(self._links.get(id(obj), ()))
        cut = self._cut.get(id(obj))
        return [inner for inner in found if id(inner) not in cut] if cut else found

    def noted(self, objects: Sequence[Any]) -> set[int]:
        """Return the ids of those among some objects that are reached or skipped."""
        return set(filter(self._piece_of.__contains__, map(id, objects)))

    def is_skipped(self, kind: type) -> bool:
        """Return whether objects of a class are never entered."""
        return self._kinds.of(kind) is Kind.SKIPPED

    def place_of(self, key: int) -> int:
        """Return the index of the piece of an object; SKIPPED if it has none."""
        return self._piece_of.get(key, SKIPPED)

    def refers(self) -> list[array[int]]:
        """Return, for each piece, the pieces that its objects refer to."""
        return self._refers

    def piece(self, index: int) -> list[Any]:
        """Return the objects of a piece."""
        return self._pieces[index]

    def refers_to_any(self, index: int, keys: set[int]) -> bool:
        """Return whether an object of a piece refers to one of some objects."""
        return not keys.isdisjoint(map(id, self._referents(self._pieces[index])))

    # --- one step

    def _adapt(self, queried: int, found: int) -> None:
        """Set how many objects a step reads, by how many references they have."""
        if found > AT_ONCE:
            self._take = max(1, queried * AT_ONCE // (2 * found))
        elif self._take < PIECE:
            self._take = min(PIECE, 4 * self._take)

    def _one_by_one(
        self, piece: list[Any], done: int, seen: set[int]
    ) -> Generator[None, None, int]:
        """Read a piece's objects one by one; return how many are done.

        Objects that join it meanwhile are read as well.
        """
        referents, is_tracked, where_is = gc.get_referents, gc.is_tracked, self._piece_of.get
        kinds, links, cut = self._kinds.known, self._links, self._cut
        last = self._pieces[-1]
        for obj in islice(piece, done, done + PIECE // 4):
            done += 1
            found = referents(obj)
            if (links and id(obj) in links) or (cut and id(obj) in cut):
                found = self.referents(obj)
            if len(found) > FEW:
                yield from self._admit(list(filter(is_tracked, found)), seen)
                break
            for inner in found:
                if is_tracked(inner):
                    where = where_is(id(inner))
                    if where is None:
                        if kinds.get(id(type(inner))) is not _PLAIN or len(last) >= PIECE:
                            where = self._admit_one(inner)
                            last = self._pieces[-1]
                        else:
                            last.append(inner)
                            where = self._piece_of[id(inner)] = len(self._pieces) - 1
                    seen.add(where)
            if len(piece) - done > FEW:
                break
        return done

    def _referents(self, part: list[Any]) -> list[Any]:
        if self._cut and not self._cut.keys().isdisjoint(map(id, part)):
            inner = chain.from_iterable(map(self.referents, part))
            return [obj for obj in inner if gc.is_tracked(obj)]
        found = list(filter(gc.is_tracked, gc.get_referents(*part)))
        if self._links:
            links = self._links
            found.extend(chain.from_iterable(links[i] for i in map(id, part) if i in links))
        return found

    # --- noting

    def _admit_one(self, obj: Any) -> int:
        kind = self._kinds.known.get(id(type(obj)))
        if kind is None:
            kind = self._kinds.of(type(obj))
        if kind is not Kind.PLAIN and not self._enter(obj, kind):
            return SKIPPED
        if len(self._pieces[-1]) >= PIECE:
            self._pieces.append([])
        self._pieces[-1].append(obj)
        where = self._piece_of[id(obj)] = len(self._pieces) - 1
        return where

    def _admit(self, found: list[Any], seen: set[int]) -> Iterator[None]:
        """Note new objects, and the pieces in which the given objects are."""
        if len(found) > PIECE and self._pieces[-1]:
            self._pieces.append([])
        for start in range(0, len(found), PIECE):
            part = found[start : start + PIECE]
            if start:
                yield
            if len(found) > PIECE and self._leads_nowhere(part):
                continue
            ids = list(map(id, part))
            places = list(map(self._piece_of.setdefault, ids, repeat(_NEW)))
            if _NEW in places:
                new = map(_NEW.__eq__, places)
                self._note(dict(compress(zip(ids, part, strict=True), new)), seen)
            seen.update(places)

    def _note(self, fresh: dict[int, Any], seen: set[int]) -> None:
        """Put new objects, by id, into pieces."""
        objects = list(fresh.values())
        if self._kinds.among(objects) != _ONLY_PLAIN:
            of = self._kinds.of
            objects = [t for t in objects if not (kind := of(type(t))) or self._enter(t, kind)]
        while objects:
            if len(self._pieces[-1]) >= PIECE:
                self._pieces.append([])
            room = PIECE - len(self._pieces[-1])
            part, objects = objects[:room], objects[room:]
            self._pieces[-1].extend(part)
            index = len(self._pieces) - 1
            seen.add(index)
            self._piece_of.update(zip(map(id, part), repeat(index)))

    def _leads_nowhere(self, part: list[Any]) -> bool:
        """Return whether many objects are only data and hold no tensor.

        A thousand rows of data are an example.

        They are not even recorded, because recording takes the most time.
        """
        kinds = frozenset(map(id, map(type, part)))
        if self._no_data[kinds] >= TRIES:
            return False
        nowhere = self._is_data(part, 0)
        if not nowhere:
            self._no_data[kinds] += 1
        return nowhere

    def _is_data(self, part: list[Any], depth: int) -> bool:
        kinds = self._kinds.among(part)
        if kinds - _NO_TENSORS:
            return False
        if Kind.SKIPPED in kinds:
            part = [obj for obj in part if self._kinds.of(type(obj)) is Kind.PLAIN]
        inner = list(filter(gc.is_tracked, gc.get_referents(*part)))
        if not inner:
            return True
        if depth == DEPTH or len(inner) > 8 * PIECE:
            return False
        by_id = dict(zip(map(id, inner), inner, strict=True))
        known = self._piece_of.keys() & by_id.keys()
        if any(self._piece_of[key] != SKIPPED for key in known):
            return False  # a path to known objects must be recorded
        return self._is_data([by_id[k] for k in by_id if k not in known], depth + 1)

    def _enter(self, obj: Any, kind: Kind) -> bool:
        """Read what the garbage collector cannot; False for what leads nowhere."""
        key = id(obj)
        if kind is Kind.SKIPPED:
            self._piece_of[key] = SKIPPED
            self._held.append(obj)
            return False
        if kind is Kind.ARRAY:
            if obj.dtype.hasobject:
                self._links[key] = list(filter(gc.is_tracked, obj.ravel().tolist()))
        elif kind is Kind.NODE:
            self._links[key] = self.graphs.of_node(obj)
        else:
            self.tensors[key] = obj
            if kind is Kind.TENSOR:
                self._links_of(key, obj)
        return True

    def _links_of(self, key: int, tensor: Any) -> None:
        links = self.graphs.of_tensor(tensor)
        if not dispatches(self._torch, type(tensor)):
            links += self.graphs.of_sparse(tensor)
        if links:
            self._links[key] = links
