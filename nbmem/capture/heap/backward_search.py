"""Search the heap backwards for what leads to some tensors.

It goes level by level among the objects that were not reached. The objects found are judged as the
garbage collector would: an object that only others of them refer to is merely not collected yet.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from nbmem.capture.heap.cycles import closing_reference
from nbmem.capture.heap.reachability import PIECE, ForwardWalk
from nbmem.capture.interpreter.busy_threads import outwards
from nbmem.capture.interpreter.class_kinds import is_node
from nbmem.capture.interpreter.object_members import (
    attributes_of,
    is_a,
    locals_of,
    module_namespace,
    name_of,
)
from nbmem.capture.interpreter.roots import isinstance_of_module
from nbmem.capture.tensors.modules import is_tensor
from nbmem.capture.tensors.tensors import gradient_of
from nbmem.core.session.holders import Holder, HolderKind
from nbmem.core.session.tensor_names import CONTEXT, LOCAL

BUDGET_S = 1.0
"""Limit of the search in seconds of this thread's time; holders not found by then are not told."""
FIRST = 8
"""Objects whose referrers are searched first; four times as many in each further level."""
FEW = 128
"""Up to this many objects `gc.get_referrers` is faster than our search."""
MAX_LEVELS = 40
MAX_MEMBERS = 20_000
MAX_FORWARD = 10_000
"""Objects that are followed forward in each level."""
STRIDE = 64
"""Objects that are followed between two points at which the caller may stop the walk, at most."""

_PLUMBING = frozenset(map(id, (dict, list, tuple, set, CellType, FunctionType, MethodType)))
"""Types that do not describe a cycle, by id: a class may compare itself with others."""
_CONTAINERS = frozenset((id(dict), id(list), id(tuple), id(set), id(CellType)))
"""Types without attributes, by id."""
_TRIES = 3
"""Objects of a class whose circle is searched, until one is found."""
CYCLE = "a reference cycle"


class BackwardSearch:
    """A search for the objects that refer, directly or not, to some tensors.

    Attributes:
        complete: Whether it has found all that Python can see.
    """

    def __init__(self, reach: ForwardWalk, unreached: Mapping[int, Any]) -> None:
        self.complete = False
        self._reach = reach
        self._members: list[Any] = list(unreached.values())
        self._place: dict[int, int] = {key: i for i, key in enumerate(unreached)}
        self._sources: dict[int, set[int]] = defaultdict(set)
        self._ends: dict[int, Holder] = {}
        self._by_local: dict[int, Holder] = {}
        self._contexts: dict[int, Holder] = {}
        self._running = _running_frames()
        self._tensors = len(self._members)
        self._ours = {id(unreached), id(self._members)}
        self._closing: dict[int, str] = {}
        self._tries: Counter[int] = Counter()
        self._modules = _modules()
        self._globals_of = {id(module_namespace(m)): name for name, m in self._modules}

    def search(self, suspects: Callable[[], Iterable[Any]]) -> Iterator[None]:
        """Go back level by level until nothing is new or a limit is reached.

        A level of this search visits the whole heap. So what the objects refer to is followed
        first, which visits only them: a hook's closure leads to the model that has the hook. Only
        objects with references from elsewhere are searched for. The limits are seconds, levels and
        objects.
        """
        until = time.thread_time() + BUDGET_S
        new, searched = set(self._place), set[int]()
        new |= self._add(suspects())  # held by nothing here, or they would not be garbage
        for number in range(MAX_LEVELS):
            yield from self._follow(new)
            # The list of the first few leads to its other items.
            level = set(islice(self._unexplained() - searched, FIRST << 2 * number))
            if not level:
                self.complete = True
                return
            if time.thread_time() > until or len(self._members) > MAX_MEMBERS:
                return
            searched |= level
            new = set()
            for found in self._referrers(level):
                self._join(found, level, new)
                yield

    def _follow(self, new: set[int]) -> Iterator[None]:
        """Add the unreached objects to which new members refer, directly or not."""
        waiting, most = deque(new), len(self._members) + MAX_FORWARD
        while waiting and len(self._members) < most:
            inner = _referents(self._members[self._place[waiting.popleft()]])
            waiting.extend(self._add(inner))
            if not len(waiting) % STRIDE:
                yield

    def _add(self, objects: Iterable[Any]) -> set[int]:
        """Add unreached objects, and return the ids of the new members."""
        new = set()
        for obj in self._reach.without_noted(list(filter(gc.is_tracked, objects))):
            if id(obj) not in self._place and self._is_member(obj):
                self._place[id(obj)] = len(self._members)
                self._members.append(obj)
                new.add(id(obj))
        return new

    def _is_member(self, obj: Any) -> bool:
        """Return whether an object may be a part of a cycle; others end a path."""
        kind = type(obj)
        ends = isinstance_of_module(obj) or self._reach.is_skipped(kind)
        runs = kind is FrameType and id(obj) in self._running
        return not (ends or runs) and id(obj) not in self._globals_of and not is_a(kind, type)

    def _unexplained(self) -> set[int]:
        """Return the members before a tensor with references from elsewhere."""
        inside, onward = self._references()
        for source, found in onward.items():
            for key in found:
                self._sources[key].add(source)
        leading = list(islice(self._place, self._tensors))
        known = set(leading)
        while leading:
            fresh = self._sources[leading.pop()] - known
            known |= fresh
            leading.extend(fresh)
        return known.intersection(self._referred_from_elsewhere(inside))

    def _references(self) -> tuple[Counter[int], dict[int, list[int]]]:
        """Count the members that refer to each member, and list its referents."""
        inside: Counter[int] = Counter()
        onward = {}
        for source, i in self._place.items():
            inner = map(id, _referents(self._members[i]))
            found = [key for key in inner if key in self._place]
            inside.update(found)
            onward[source] = found
        return inside, onward

    def _referred_from_elsewhere(self, inside: Counter[int]) -> Iterator[int]:
        """Yield the members with more references than those from inside."""
        box = [object()]
        ours = sys.getrefcount(box[0])
        for key, i in self._place.items():
            internal = ours + (i < self._tensors)  # `unreached` holds the tensors as well
            if sys.getrefcount(self._members[i]) > internal + inside[key]:
                yield key

    def _join(self, found: list[Any], level: set[int], new: set[int]) -> None:
        for obj in _without_modules(found):
            source = id(obj)
            if source in self._ours:
                continue
            hits = level.intersection(map(id, gc.get_referents(obj)))
            if self._ends_at(obj, hits):
                continue
            for key in hits:
                self._sources[key].add(source)
            if source not in self._place:
                self._place[source] = len(self._members)
                self._members.append(obj)
                new.add(source)
        found.clear()  # or the next search would find this list

    def _referrers(self, level: set[int]) -> Iterator[list[Any]]:
        """Yield lists of the objects that refer to some members.

        For a few members Python's own search is faster.
        """
        if len(level) <= FEW:
            wanted = [self._members[self._place[key]] for key in level]
            found = gc.get_referrers(*wanted)
            yield [obj for obj in found if not _is_call(obj, wanted)]
            return
        tracked = gc.get_objects()
        tracked += [module_namespace(m) for _, m in self._modules]
        for start in range(0, len(tracked), PIECE):
            piece = _without_modules(self._reach.without_noted(tracked[start : start + PIECE]))
            if not level.isdisjoint(map(id, gc.get_referents(*piece))):
                yield [t for t in piece if not level.isdisjoint(map(id, gc.get_referents(t)))]
            elif not start % (8 * PIECE):
                yield []

    def _ends_at(self, obj: Any, hits: set[int]) -> bool:
        """Return whether the path back ends here; if so, record the holder.

        It ends at a module's globals, a class, a frame that runs, or an object of a package such as
        IPython. A frame that has ended may be a part of a cycle: a local of it has the frame, or
        its exception.
        """
        module = self._globals_of.get(id(obj))
        kind = HolderKind.MODULE
        if module is not None:
            for name, value in obj.items():
                if id(value) in hits:
                    root = f"module {module}"
                    self._ends[id(value)] = Holder(kind, root, f"{module}.{name}")
            return True
        if type(obj) is FrameType:
            held = _by_local(obj, hits)
            runs = id(obj) in self._running
            (self._ends if runs else self._by_local).update(held)
            return runs
        if is_node(type(obj)):
            self._contexts.update(dict.fromkeys(hits, self._of_context(obj)))
            return False
        if self._reach.is_skipped(type(obj)):
            root = name_of(obj if type(obj) is type else type(obj))
            kind = kind if type(obj) is type else HolderKind.UNSEEN
            holder = Holder(kind, root, f"something of {root}")
        else:
            return False
        self._ends.update(dict.fromkeys(hits, holder))
        return True

    def _of_context(self, ctx: Any) -> Holder:
        """Return the holder that the `ctx` of an autograd function is."""
        function = name_of(type(ctx)).removesuffix("Backward")
        own = attributes_of(ctx) or {}
        names = [f"{CONTEXT}.{name}" for name, value in own.items() if id(value) in self._place]
        path = f"{names[0] if len(names) == 1 else CONTEXT} of {function}"
        return Holder(HolderKind.UNSEEN, path, path)

    def unreferenced_members(self) -> set[int]:
        """Return the members that nothing outside the search refers to.

        References are counted as the garbage collector does.

        They are counted at once, regardless of what the search found before. A member has more
        references than those from inside if it has another holder: a new one, or one that the
        search did not reach.
        """
        inside, onward = self._references()
        alive = deque(self._ends)
        alive.extend(self._referred_from_elsewhere(inside))
        living: set[int] = set()
        while alive:
            key = alive.pop()
            if key not in living:
                living.add(key)
                alive.extend(onward.get(key, ()))
        return set(self._place) - living

    def label(self, key: int) -> Holder | None:
        """Return the nearest module global or frame that leads to a tensor.

        Without one, the local of a frame that has ended, or else the `ctx` of an autograd function,
        which a graph keeps. None if there is none of these.
        """
        queue, known = deque([key]), {key}
        local = context = None
        while queue:
            at = queue.popleft()
            if at in self._ends:
                return self._ends[at]
            local = local or self._by_local.get(at)
            context = context or self._contexts.get(at)
            fresh = self._sources[at] - known
            known |= fresh
            queue.extend(fresh)
        return local or context

    def cycle_of(self, key: int, dead: set[int]) -> str:
        """Describe a tensor's cycle: `a reference cycle through Node.parent`.

        It names the attribute that closes the circle. Where it is not found, it names the class of
        the nearest object that is not a plain container or function.
        """
        queue, known = deque([key]), {key}
        nearest: type | None = None
        while queue:
            at = queue.popleft()
            obj = self._members[self._place[at]]
            kind = type(obj)
            if at != key and id(kind) not in _PLUMBING:
                nearest = nearest or kind
            closing = None if id(kind) in _CONTAINERS else self._closing_reference(obj)
            if closing is not None:
                return f"{CYCLE} through {closing}"
            fresh = (self._sources[at] & dead) - known
            known |= fresh
            queue.extend(fresh)
        return CYCLE if nearest is None else f"{CYCLE} through {name_of(nearest)}"

    def _closing_reference(self, obj: Any) -> str | None:
        """Return an object's closing reference, or that of one of its class.

        A search that found none is repeated `_TRIES` times for a class.
        """
        key = id(type(obj))
        if key not in self._closing and self._tries[key] < _TRIES:
            self._tries[key] += 1
            found = closing_reference(obj)
            if found is not None:
                self._closing[key] = found
        return self._closing.get(key)


def _referents(obj: Any) -> list[Any]:
    """Return the objects to which an object refers.

    A parameter's gradient is one. The garbage collector does not see that reference: it is in C++.
    """
    found = gc.get_referents(obj)
    gradient = gradient_of(obj) if is_tensor(obj) else None
    return found if gradient is None else [*found, gradient]


def _running_frames() -> set[int]:
    """Return the ids of the frames of all threads.

    No variable has a frame, nor the dictionary of them: with this function's own that would be a
    reference cycle, which keeps the callers and what they search.
    """
    return {
        id(one)
        for frame in sys._current_frames().values()  # noqa: SLF001 - the documented way
        for one in outwards(frame)
    }


def _by_local(frame: FrameType, hits: set[int]) -> dict[int, Holder]:
    """Return the holders of what a frame refers to, by id."""
    root = f"{frame.f_code.co_name}()"
    names = {id(value): f"{LOCAL}{name}" for name, value in locals_of(frame).items()}
    return {
        key: Holder(HolderKind.FRAME, root, f"{names.get(key, 'a local')} of {root}")
        for key in hits
    }


def _without_modules(objects: list[Any]) -> list[Any]:
    """Leave out modules, whose referents must not be read.

    Their globals matter, and are read directly.

    A C module may expose objects to the collector that must not be held. Python 3.12's `_asyncio`
    exposes its list of freed futures. Once held, they are in it twice, and the next collection
    loops forever.
    https://github.com/python/cpython/blob/v3.12.1/Modules/_asynciomodule.c#L3596
    """
    return [obj for obj in objects if type(obj) is not ModuleType]


def _is_call(obj: Any, wanted: list[Any]) -> bool:
    """Return whether an object is this search's own list or arguments.

    Python 3.13 packs the arguments of `gc.get_referrers` into a tuple.
    """
    if obj is wanted:
        return True
    same = type(obj) is tuple and len(obj) == len(wanted)
    return same and all(a is b for a, b in zip(obj, wanted, strict=True))


def _modules() -> list[tuple[str, Any]]:
    return [(n, m) for n, m in list(sys.modules.items()) if isinstance_of_module(m)]
