"""Walk the live heap for each storage on a card, with its holders."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbmem.capture.heap.dead_tracebacks import held_by_dead_tracebacks
from nbmem.capture.heap.held_storages import TensorStorages
from nbmem.capture.heap.incremental import IncrementalWork
from nbmem.capture.heap.path_names import PathWriter
from nbmem.capture.heap.paths import HeapPaths
from nbmem.capture.heap.reachability import ForwardWalk
from nbmem.capture.heap.unreachable import (
    ALL_S,
    GRADIENT_CYCLE,
    all_tensors,
    holders_of_unreached,
    in_gradient_cycles,
)
from nbmem.capture.interpreter.class_kinds import is_node
from nbmem.capture.interpreter.object_members import is_a, name_of
from nbmem.capture.interpreter.roots import Place, places, skipped_objects
from nbmem.capture.tensors.active_registry import active_registry
from nbmem.capture.torch_cuda import initialized_torch, loaded_torch
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.session.holders import HeldStorage, Holder, HolderKind
from nbmem.core.session.tensor_names import WRITES_TO

if TYPE_CHECKING:
    from nbmem.capture.torch_memory.tensorless_blocks import BlocksInUse

PAUSE_S = 0.001
"""If this process has worked longer between two pieces of a walk, other code has run there. Time in
which other processes had the processor is none of it."""
_WORKED = CLOCK.monotonic if sys.platform == "win32" else CLOCK.process_time
"""Windows counts a process's time in steps of 16 ms."""
_UNEXPLAINED = (HolderKind.CYCLE, HolderKind.UNSEEN)
_WRITE = "CopySlices"
"""Node of a tensor of which a view was written in place."""
_STRIDE = 32
"""Tensors between two points at which the caller may stop the walk."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of one heap walk.

    Attributes:
        by_device: The storages of each card by its CUDA ordinal, largest first.
        complete: Whether the walk finished; else some holders and storages are missing.
        hindered: Names of other threads that may have been using tensors, which ended the walk.
        deep: Whether a graph was longer than is followed (autograd_graphs.py).
        bounds: Containers with a limit that hold storages: their items, and the most of them.
    """

    by_device: dict[int, tuple[HeldStorage, ...]] = field(default_factory=dict)
    complete: bool = True
    hindered: tuple[str, ...] = ()
    deep: bool = False
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cut:
    """The places and references that a walk passes over.

    The walk then shows what releasing them would free.

    Attributes:
        place: Returns whether to skip a place.
        edges: References to skip, as the ids of their two ends.
    """

    place: Callable[[Place], bool] = lambda _: False
    edges: frozenset[tuple[int, int]] = frozenset()


def walk(
    namespace: Mapping[str, Any],
    cut: Cut | None = None,
    met: Callable[[Iterable[Any]], None] | None = None,
    *,
    budget_s: float | None = None,
    go_on: Callable[[], bool] | None = None,
) -> Walk:
    """Find everything that holds memory on a card now.

    Args:
        namespace: The notebook's names.
        cut: What to skip, or None.
        met: Called with the tensors that were reached; must not retain them.
        budget_s: Limit of this thread's own CPU time in seconds; None for no limit.
        go_on: Called about every 6 ms. False ends the walk. It must not run the user's code.
    """
    torch = _torch()
    if torch is None:
        return Walk()
    look = _WalkInProgress(torch, namespace, cut or Cut(), met)
    pieces = IncrementalWork(torch, look.steps(), budget_s, go_on)
    pieces.run()
    return look.result(pieces)


def walk_in_pieces(
    namespace: Mapping[str, Any],
    met: Callable[[Iterable[Any]], None] | None = None,
    *,
    in_use: BlocksInUse | None = None,
    suspects: Callable[[], Iterable[Any]] = tuple,
) -> Generator[float, None, Walk]:
    """Walk as `walk()` does, in pieces of about 6 ms.

    The user's code may run between two pieces. The generator yields the duration in seconds of a
    step that cannot be divided, before that step, and otherwise 0. Closing the generator ends the
    walk and releases everything that it held. A tensor without a known holder is omitted, because
    it may have been moved between two pieces.

    Args:
        namespace: As for `walk`.
        met: As for `walk`.
        in_use: The cards' blocks. All live objects are searched only if these may hold a tensor
            that no place reaches. None to search always.
        suspects: Returns objects that may lead to tensors that no place reaches: models.

    Returns:
        The result, as the value of StopIteration.
    """
    torch = _torch()
    if torch is None:
        return Walk()
    look = _WalkInProgress(torch, namespace, Cut(), met)
    look.in_use, look.suspects = in_use, suspects
    pieces = IncrementalWork(torch, look.steps())
    # Closed explicitly: in some releases (Python 3.12.0, 3.13.0) a generator that is closed outside
    # of a `try` retains its locals. A walk that ended early would then retain what it had found.
    with closing(pieces.one_by_one()) as work:
        for coming in work:
            left = _WORKED()
            yield coming
            look.alone &= _WORKED() - left < PAUSE_S
    return look.result(pieces)


def reachable_storages(
    namespace: Mapping[str, Any], cut: Cut | None = None
) -> set[tuple[int, int]]:
    """Return the storages that any place reaches, without their holders.

    Each is (CUDA ordinal, address).
    """
    torch = _torch()
    if torch is None:
        return set()
    cut = cut or Cut()
    begun = [place.obj for place in places(namespace) if not cut.place(place)]
    return _storages_from(torch, begun, namespace, cut)


def reached_from(obj: object, namespace: Mapping[str, Any]) -> set[tuple[int, int]]:
    """Return the storages that one object reaches.

    Each is (CUDA ordinal, address).
    """
    torch = _torch()
    return set() if torch is None else _storages_from(torch, [obj], namespace, Cut())


def _torch() -> Any:
    """Return torch where it has memory that can be read, else None."""
    return initialized_torch() or (loaded_torch() if active_registry() else None)


def _storages_from(
    torch: Any, objects: list[object], namespace: Mapping[str, Any], cut: Cut
) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()

    def steps() -> Generator[None]:
        reach = ForwardWalk(torch, skipped_objects(namespace), cut.edges)
        yield from reach.steps(objects)
        seen = TensorStorages(torch)
        yield from _see(seen, reach.tensors)
        found.update(seen.storage.values())

    IncrementalWork(torch, steps()).run()
    return found


def _see(seen: TensorStorages, tensors: Mapping[int, Any]) -> Iterator[None]:
    for i, (key, tensor) in enumerate(tensors.items()):
        seen.add(key, tensor)
        if not i % _STRIDE:
            yield


class _WalkInProgress:
    """One walk in progress; the steps hold objects, the result only text.

    Attributes:
        alone: Whether only the walk's own code has run in this thread since it began.
        in_use: The cards' blocks, None to search all live objects in any case.
        suspects: Returns objects that may lead to tensors that no place reaches.
    """

    def __init__(
        self,
        torch: Any,
        namespace: Mapping[str, Any],
        cut: Cut,
        met: Callable[[Iterable[Any]], None] | None,
    ) -> None:
        self.alone = True
        self.in_use: BlocksInUse | None = None
        self.suspects: Callable[[], Iterable[Any]] = tuple
        self._torch = torch
        self._namespace = namespace
        self._cut = cut
        self._met = met
        self._seen = TensorStorages(torch)
        self._complete = True
        self._deep = False
        self._bounds: dict[str, tuple[int, int]] = {}
        self._holders: dict[tuple[int, int], list[Holder]] = defaultdict(list)

    def result(self, pieces: IncrementalWork) -> Walk:
        """Return the result of the walk up to now."""
        return Walk(
            self._seen.by_device(self._holders),
            complete=pieces.ended and self._complete,
            hindered=tuple(pieces.hindered),
            deep=self._deep,
            bounds=self._bounds,
        )

    def steps(self) -> Generator[float | None]:
        """Do the walk in short steps."""
        torch, namespace, seen = self._torch, self._namespace, self._seen
        begun = [place for place in places(namespace) if not self._cut.place(place)]
        yield None
        reach = ForwardWalk(torch, skipped_objects(namespace), self._cut.edges)
        yield from reach.steps([place.obj for place in begun])
        self._deep = reach.graphs.deep
        if self._met is not None:
            self._met(reach.tensors.values())
            yield None
        yield from _see(seen, reach.tensors)
        ways = HeapPaths(reach, seen.targets())
        yield from ways.steps()
        yield from self._name(begun, ways)
        self._complete = ways.complete
        yield from self._name_unreached(reach)

    def _name(self, begun: list[Place], ways: HeapPaths) -> Iterator[None]:
        """Add the path from every place to every storage that it reaches."""
        wording = PathWriter(self._torch)
        self._bounds = wording.bounds
        for i, place in enumerate(begun):
            for found in ways.from_start(place.obj):
                if found is not None:
                    key, way = found
                    self._holders[self._seen.storage[key]].append(wording.holder(place, way))
                yield
            if not i % _STRIDE:
                yield

    def _name_unreached(self, reach: ForwardWalk) -> Iterator[float | None]:
        if self.in_use is not None and not self.in_use.hold_more_than(self._holders):
            return
        yield ALL_S
        found = all_tensors(self._torch)
        yield None
        unreached = {key: tensor for key, tensor in found.items() if key not in reach.tensors}
        del found
        for i, key in enumerate(list(unreached)):
            # A view's base may be alive without a holder; it must not replace the view's shape.
            if not self._seen.add(key, unreached[key], but=self._holders):
                del unreached[key]
            if not i % _STRIDE:
                yield None
        if self.in_use is not None:
            self.in_use.searched(self._seen.storage.values())
        if unreached:
            yield from self._name_runs_before(reach, unreached)
            yield from self._name_garbage(reach, unreached)

    def _name_runs_before(self, reach: ForwardWalk, unreached: dict[int, Any]) -> Iterator[None]:
        """Name what earlier failed cells keep, and remove it from `unreached`."""
        before: list[tuple[Any, Holder]] = []
        yield from held_by_dead_tracebacks(self._torch, reach, before)
        for tensor, holder in before:
            if self._seen.add(id(tensor), tensor, but=self._holders):
                self._holders[self._seen.storage[id(tensor)]].append(holder)
                unreached.pop(id(tensor), None)

    def _name_garbage(self, reach: ForwardWalk, unreached: dict[int, Any]) -> Iterator[None]:
        """Name the other tensors that no place reaches."""
        holders = yield from holders_of_unreached(
            reach, unreached, suspects=self.suspects, say_unseen=self._is_alone
        )
        yield from self._name_gradient_cycles(unreached, holders)
        dead, unseen = list[tuple[Any, Any]](), dict[int, Any]()
        for key, holder in holders.items():
            if holder.kind is HolderKind.UNSEEN:
                unseen[key] = holder
                continue
            self._holders[self._seen.storage[key]].append(holder)
            if holder.kind is HolderKind.CYCLE:
                dead.append((unreached[key], holder))
        yield
        yield from self._name_graphs(reach, dead)
        written = self._written_in_place(reach) if unseen else None
        for key, holder in unseen.items():
            self._holders.setdefault(self._seen.storage[key], [written or holder])

    def _written_in_place(self, reach: ForwardWalk) -> Holder | None:
        """Return the first name of a tensor whose views were written in place.

        Its graph then begins with a node that keeps the write's own, of which Python sees nothing:
        https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/functions/tensor.h
        """
        for key, tensor in reach.tensors.items():
            nodes = (one for one in reach.graphs.of_tensor(tensor) if is_node(type(one)))
            if any(name_of(type(node)) == _WRITE for node in nodes):
                known = self._holders.get(self._seen.storage[key])
                if known:
                    path = f"{WRITES_TO}{known[0].path}"
                    return Holder(HolderKind.UNSEEN, path, path)
        return None

    def _name_graphs(self, reach: ForwardWalk, dead: list[tuple[Any, Holder]]) -> Iterator[None]:
        """Name the tensors that only graphs and gradients of dead tensors hold."""
        graphs, held = reach.graphs.without_nodes(), list[Any]()  # so that ids are unique
        while dead:
            tensor, holder = dead.pop()
            links = graphs.of_tensor(tensor)
            inner = [one for one in links if is_a(type(one), self._torch.Tensor)]
            for node in graphs.reachable_nodes(one for one in links if is_node(type(one))):
                inner.extend(graphs.saved_by(node))
            for one in inner:
                is_new = is_a(type(one), self._torch.Tensor) and id(one) not in reach.tensors
                if is_new and self._seen.add(id(one), one, but=self._holders):
                    held.append(one)
                    self._holders[self._seen.storage[id(one)]].append(holder)
                    dead.append((one, holder))
            yield

    def _name_gradient_cycles(
        self, unreached: Mapping[int, Any], holders: dict[int, Holder]
    ) -> Iterator[None]:
        """Add gradient cycles, also where a collection would free nothing."""
        found = yield from in_gradient_cycles(self._torch, unreached)
        for key, tensor in found.items():
            explained = key in holders and holders[key].kind not in _UNEXPLAINED
            known = key in self._seen.storage
            if not explained and (known or self._seen.add(key, tensor, but=self._holders)):
                holders[key] = GRADIENT_CYCLE

    def _is_alone(self) -> bool:
        return self.alone
