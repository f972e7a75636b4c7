"""Tensors that live though no place reaches them: reference cycles, and what libraries keep.

For these the heap is searched backwards, one level at a time, among the objects that were not
reached. What is found then is judged as the garbage collector would: an object whose references all
come from inside is alive only because nobody has collected it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, defaultdict, deque
from itertools import compress
from types import CellType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from nbmem.core.holders import Holder, HolderKind
from nbmem.probes.holders.objects import module_namespace
from nbmem.probes.holders.places import isinstance_of_module
from nbmem.probes.holders.reach import PIECE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbmem.probes.holders.reach import Reach

BUDGET_S = 0.25
"""After so many seconds of this thread's own the search ends; what it has not found is `unseen`."""
FEW = 32
"""Up to so many objects `gc.get_referrers` beats a search of ours."""
MAX_LEVELS = 12
MAX_MEMBERS = 20_000

_PLUMBING = (dict, list, tuple, set, CellType, FunctionType, MethodType)
"""Types that say nothing about a cycle."""
CYCLE = "a reference cycle"
UNSEEN = "something that Python cannot see"


def all_tensors(torch: Any) -> dict[int, Any]:
    """Every tensor that has a Python object, by id."""
    kinds = {torch.Tensor}
    level = [torch.Tensor]
    while level:
        level = [kind for base in level for kind in type.__subclasses__(base) if kind not in kinds]
        kinds.update(level)
    objects = gc.get_objects()
    found = compress(objects, map(kinds.__contains__, map(type, objects)))
    return {id(tensor): tensor for tensor in found}


def holders_of_lost(reach: Reach, lost: Mapping[int, Any]) -> dict[int, Holder]:
    """What keeps tensors that were not reached, by the tensor's id."""
    back = _Backwards(reach, lost)
    dead = back.dead()
    found = {}
    for key in lost:
        if key in dead:
            found[key] = Holder(HolderKind.CYCLE, CYCLE, back.cycle_of(key, dead))
        else:
            found[key] = back.label(key) or Holder(HolderKind.UNSEEN, UNSEEN, UNSEEN)
    return found


class _Backwards:
    """The objects that refer, directly or not, to some tensors."""

    def __init__(self, reach: Reach, lost: Mapping[int, Any]) -> None:
        self._reach = reach
        self._members: list[Any] = list(lost.values())
        self._place: dict[int, int] = {key: i for i, key in enumerate(lost)}
        self._sources: dict[int, set[int]] = defaultdict(set)
        self._ends: dict[int, Holder] = {}
        self._tensors = len(self._members)
        self._ours = {id(lost), id(self._members)}
        self._globals_of = {id(module_namespace(m)): name for name, m in _modules()}
        self.complete = self._search()
        self._inside = Counter(key for m in self._members for key in map(id, gc.get_referents(m)))

    def _search(self) -> bool:
        """Go back level by level; False if time or room ended first."""
        until = time.thread_time() + BUDGET_S
        level = set(self._place)
        for _ in range(MAX_LEVELS):
            level = self._one_level_back(level)
            if not level:
                return True
            if time.thread_time() > until or len(self._members) > MAX_MEMBERS:
                break
        return False

    def _one_level_back(self, level: set[int]) -> set[int]:
        new = set()
        for thing in self._referrers(level):
            source = id(thing)
            if source in self._ours:
                continue
            hits = level.intersection(map(id, gc.get_referents(thing)))
            if self._ends_at(thing, hits):
                continue
            for key in hits:
                self._sources[key].add(source)
            if source not in self._place:
                self._place[source] = len(self._members)
                self._members.append(thing)
                new.add(source)
        return new

    def _referrers(self, level: set[int]) -> list[Any]:
        """The objects that refer to some members. Python's own search is quick for a few."""
        if len(level) <= FEW:
            wanted = [self._members[self._place[key]] for key in level]
            found = gc.get_referrers(*wanted)
            return [thing for thing in found if not _is_call(thing, wanted)]
        others = self._reach.others(gc.get_objects())
        others += [module_namespace(m) for _, m in _modules()]
        found = []
        for start in range(0, len(others), PIECE):
            piece = others[start : start + PIECE]
            if not level.isdisjoint(map(id, gc.get_referents(*piece))):
                found += [t for t in piece if not level.isdisjoint(map(id, gc.get_referents(t)))]
        return found

    def _ends_at(self, thing: Any, hits: set[int]) -> bool:
        """Whether the way back ends here: at a module, a class, a frame, a part of IPython."""
        module = self._globals_of.get(id(thing))
        kind = HolderKind.MODULE
        if module is not None:
            for name, value in thing.items():
                if id(value) in hits:
                    root = f"module {module}"
                    self._ends[id(value)] = Holder(kind, root, f"{module}.{name}")
            return True
        if type(thing) is FrameType:
            root = f"{thing.f_code.co_name}()"
            holder = Holder(HolderKind.FRAME, root, f"a local of {root}")
        elif self._reach.is_barred(type(thing)):
            root = thing.__name__ if type(thing) is type else type(thing).__name__
            kind = kind if type(thing) is type else HolderKind.UNSEEN
            holder = Holder(kind, root, f"something of {root}")
        else:
            return False
        self._ends.update(dict.fromkeys(hits, holder))
        return True

    def dead(self) -> set[int]:
        """The members that nothing from outside refers to, as the garbage collector counts."""
        if not self.complete:
            return set()
        box = [object()]
        ours = sys.getrefcount(box[0])
        alive = deque(self._ends)
        for key, i in self._place.items():
            mine = ours + (i < self._tensors)  # `lost` holds the tensors once more
            if sys.getrefcount(self._members[i]) > mine + self._inside[key]:
                alive.append(key)
        onward = defaultdict(set)
        for key, sources in self._sources.items():
            for source in sources:
                onward[source].add(key)
        living: set[int] = set()
        while alive:
            key = alive.pop()
            if key not in living:
                living.add(key)
                alive.extend(onward[key])
        return set(self._place) - living

    def label(self, key: int) -> Holder | None:
        """The nearest module's global or frame that leads to a tensor."""
        queue, known = deque([key]), {key}
        while queue:
            at = queue.popleft()
            if at in self._ends:
                return self._ends[at]
            fresh = self._sources[at] - known
            known |= fresh
            queue.extend(fresh)
        return None

    def cycle_of(self, key: int, dead: set[int]) -> str:
        """`a reference cycle through Trainer`, by the nearest object that says something."""
        queue, known = deque([key]), {key}
        while queue:
            at = queue.popleft()
            kind = type(self._members[self._place[at]])
            if at != key and kind not in _PLUMBING:
                return f"{CYCLE} through {kind.__name__}"
            fresh = (self._sources[at] & dead) - known
            known |= fresh
            queue.extend(fresh)
        return CYCLE


def _is_call(thing: Any, wanted: list[Any]) -> bool:
    """Whether it is our own list, or what Python 3.13 packs the arguments of that call into."""
    if thing is wanted:
        return True
    same = type(thing) is tuple and len(thing) == len(wanted)
    return same and all(a is b for a, b in zip(thing, wanted, strict=True))


def _modules() -> list[tuple[str, Any]]:
    return [(n, m) for n, m in list(sys.modules.items()) if isinstance_of_module(m)]
