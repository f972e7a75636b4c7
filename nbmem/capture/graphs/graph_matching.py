"""Reuse saved-tensor names for a graph like one that was read before.

If no allocator history shows what a graph keeps alive, each graph is read. Most are like the one
before: nodes of equal kinds at equal positions, which end in the same parameters. Then only the
saved tensors are read: 2.3 ms instead of 6.3 for six transformer layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.graphs.compiled_regions import NODE
from nbmem.capture.graphs.saved_tensors import GraphWalk, SavedStorage
from nbmem.capture.interpreter.object_members import name_of
from nbmem.capture.tensors.active_registry import existing_since
from nbmem.capture.tensors.autograd_graphs import MAX_DEPTH, is_leaf
from nbmem.capture.tensors.modules import is_tensor
from nbmem.capture.tensors.tensor_storages import dispatches, locate_storage
from nbmem.capture.tensors.tensors import ObservedStorage
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.session.categories import Category

if TYPE_CHECKING:
    Form = tuple[Any, Any] | str


class _Place(NamedTuple):
    """A tensor that a node has saved.

    Attributes:
        node: Index of the node, in the order of `_flat`.
        which: Index among the node's saved tensors.
        form: Its form when it was read.
        seen: Its name and form when it was read. Address and bytes do not apply to other graphs.
        owner: The module's owner, as in `SavedStorage`.
    """

    node: int
    which: int
    form: Form
    seen: ObservedStorage
    owner: Any


class GraphPattern:
    """The structure of a graph that was read, and its saved-tensor names.

    Retains none of its nodes and tensors.

    Args:
        walk: A graph of which `saved_tensors` has been read.

    Attributes:
        holds: Whether other graphs can be compared with it. Compiled regions cannot be, nor very
            long graphs: Python objects of their nodes change how they are freed
            (autograd_graphs.MAX_DEPTH).
    """

    def __init__(self, walk: GraphWalk) -> None:
        torch: Any = loaded_torch()
        self._kinds: list[tuple[Any, int, Any]] = []
        self._graphs = walk.graphs.without_nodes()
        self._places: list[_Place] = []
        self.holds = len(walk.nodes) <= MAX_DEPTH and not any(n.name() == NODE for n in walk.nodes)
        if not self.holds:
            return

        def learn(_: int, node: Any, edges: int) -> bool:
            known = is_leaf(node) and walk.leaf_behind(node) is not None
            ends_in = weakref.ref(node.variable) if known else None
            self._kinds.append((type(node), edges, ends_in))
            return True

        nodes = list(_flat(walk.roots, learn))
        self.holds = len(nodes) == len(walk.nodes)
        place = {id(node): i for i, node in enumerate(nodes)} if self.holds else {}
        for node, index, seen, owner in walk.named if self.holds else ():
            tensor = self._saved_by(node)[index]
            self._places.append(_Place(place[id(node)], index, _form(torch, tensor), seen, owner))

    def saved(self, roots: Sequence[Any]) -> list[SavedStorage] | None:
        """Return what another graph has saved; None if it does not match."""
        nodes = list(_flat(roots, self._is_like))
        if len(nodes) != len(self._kinds):
            return None
        torch: Any = loaded_torch()
        taken: set[int] = set()
        found = []
        for at, index, form, before, owner in self._places:
            tensors = self._saved_by(nodes[at])
            if index >= len(tensors):
                return None
            now = _form(torch, tensors[index])
            with existing_since(nodes[at]):
                place = locate_storage(torch, tensors[index])
            if place is not None and place[1] not in taken:
                taken.add(place[1])
                name = before.name
                if now != form:
                    name = f"{name.removesuffix(_written(form))}{_written(now)}"
                seen = ObservedStorage(*place, Category.ACTIVATIONS, name, before.before)
                found.append(SavedStorage(seen, owner))
        return found

    def _is_like(self, at: int, node: Any, edges: int) -> bool:
        """Return True if a node matches the one recorded at its position."""
        if at >= len(self._kinds):
            return False
        kind, count, ends_in = self._kinds[at]
        if kind is not type(node) or count != edges:
            return False
        return ends_in is None or ends_in() is node.variable

    def _saved_by(self, node: Any) -> list[Any]:
        return [one for one in self._graphs.saved_by(node) if is_tensor(one)]


def _flat(roots: Sequence[Any], fits: Callable[[int, Any, int], bool]) -> Iterator[Any]:
    """Yield each node of a graph once, until `fits` refuses one.

    Graphs of the same structure yield their nodes in the same order.
    """
    met: set[int] = set()  # the caller retains the nodes, so each id is unique
    left = list(roots)
    while left:
        node = left.pop()
        if id(node) in met:
            continue
        edges = () if is_leaf(node) else node.next_functions
        if not fits(len(met), node, len(edges)):
            return
        met.add(id(node))
        yield node
        left += [one for one, _ in edges if one is not None]


def _form(torch: Any, tensor: Any) -> Form:
    """Return shape and dtype, or the class name of a dispatching tensor.

    The user's own code might compute shape and dtype of such a subclass.
    """
    kind = type(tensor)
    if dispatches(torch, kind):
        return name_of(kind)
    return torch.Tensor.shape.__get__(tensor), torch.Tensor.dtype.__get__(tensor)


def _written(form: Form) -> str:
    if isinstance(form, str):
        return form
    shape, dtype = form
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"
