"""Find what failed cells before the last one still keep.

Python and IPython hold one exception. An older one is garbage, but IPython's formatter has left
cycles through its frames, and so may the cell: only a collection frees them. It is known by its
traceback, which begins in IPython, and to which nothing leads any more.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nbmem.capture.heap.path_names import PathWriter
from nbmem.capture.interpreter.class_kinds import is_node
from nbmem.capture.interpreter.object_members import is_a
from nbmem.capture.interpreter.roots import Place, cell_or_class, module_of
from nbmem.core.runtime.garbage_collector import instances
from nbmem.core.session.holders import RUN_BEFORE, Holder, HolderKind

if TYPE_CHECKING:
    from nbmem.capture.heap.reachability import ForwardWalk

MAX_OBJECTS = 50_000
"""Objects of dead tracebacks that are visited."""
_STRIDE = 256


def held_by_dead_tracebacks(
    torch: Any, reach: ForwardWalk, found: list[tuple[Any, Holder]]
) -> Iterator[None]:
    """Append each tensor that a failed cell's old traceback reaches.

    Args:
        torch: The user's torch.
        reach: What was reached from the program; that is not entered.
        found: Receives each with its holder.
    """
    heads = [
        one
        for one in reach.without_noted(instances((TracebackType,)))
        if module_of(one.tb_frame) == "IPython"
    ]
    if not heads:
        return
    yield
    search = _Search(torch, reach, heads)
    yield from search.run()
    wording = PathWriter(torch)
    for head in heads:
        root = f"the traceback of {RUN_BEFORE}, {cell_or_class(head)}"
        place = Place(HolderKind.TRACEBACK, root, "the exception", f"in {root}", head)
        for tensor, way in search.tensors_of(head):
            found.append((tensor, wording.holder(place, way)))
        yield


class _Search:
    """A search forward from tracebacks that the program does not reach."""

    def __init__(self, torch: Any, reach: ForwardWalk, heads: list[TracebackType]) -> None:
        self._torch, self._reach, self._heads = torch, reach, heads
        self._graphs = reach.graphs.without_nodes()
        self._members: list[Any] = []
        self._came_from: dict[int, tuple[int, int] | None] = {}  # parent, and head

    def run(self) -> Iterator[None]:
        """Visit all that the tracebacks reach."""
        for head in self._heads:
            queue: deque[tuple[Any, int | None]] = deque([(head, None)])
            while queue and len(self._members) < MAX_OBJECTS:
                obj, parent = queue.popleft()
                if id(obj) in self._came_from:
                    continue
                self._came_from[id(obj)] = None if parent is None else (parent, id(head))
                self._members.append(obj)
                fresh = self._reach.without_noted(self._referents(obj))
                queue.extend([(one, id(obj)) for one in fresh if gc.is_tracked(one)])
                if not len(self._members) % _STRIDE:
                    yield

    def _referents(self, obj: Any) -> list[Any]:
        if self._reach.is_skipped(type(obj)):
            return []
        found = gc.get_referents(obj)
        if is_node(type(obj)):
            return [*found, *self._graphs.of_node(obj)]
        return [*found, *self._graphs.of_tensor(obj)] if self._is_tensor(obj) else found

    def _is_tensor(self, obj: Any) -> bool:
        return is_a(type(obj), self._torch.Tensor)

    def tensors_of(self, head: TracebackType) -> Iterator[tuple[Any, list[Any]]]:
        """Yield the tensors of a traceback, with the objects on the way to each."""
        by_id = {id(obj): obj for obj in self._members}
        for obj in self._members:
            came = self._came_from[id(obj)]
            if came is None or came[1] != id(head) or not self._is_tensor(obj):
                continue
            way = [obj]
            while came is not None:
                way.append(by_id[came[0]])
                came = self._came_from[came[0]]
            yield obj, way[::-1]
