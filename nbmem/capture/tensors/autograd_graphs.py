"""Read the references of tensors and graph nodes that Python's GC misses.

Saved tensors are read by `SavedTensor.data`, which torch has since 2.11. It runs no unpack hook:
under checkpointing or `save_on_cpu` it is what the pack hook returned. The node's `_saved_*`
attributes are not read, because they would recompute the tensor or copy it back.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from nbmem.capture.interpreter.object_members import mro_of, name_of, namespace_of
from nbmem.capture.tensors.sequence_numbers import sequence_nr_of
from nbmem.capture.tensors.tensor_storages import parts_of_sparse
from nbmem.core.runtime.interrupts import reraise_if_from_signal

MAX_DEPTH = 8_000
"""Longest chain of nodes that is followed. Reading a node creates its Python object, which in torch
2.13 lives as long as the node. A chain of 38,000 such nodes is freed by a recursion that overflows
a stack of 8 MiB (THPCppFunction_dealloc, ~Node). Nodes without Python objects are freed by a loop:
 https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/function.cpp"""
_RAW = "_raw_saved_"


class Graphs:
    """A reader of tensors and of the nodes of their graphs.

    Attributes:
        deep: Whether a graph was deeper than `MAX_DEPTH`, so that its end was not read.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensor = torch.Tensor
        self._saved: dict[int, tuple[type, tuple[Any, ...]]] = {}
        self._next_nodes: dict[int, list[Any]] = {}  # retains the nodes, so that ids are unique
        self._height: dict[int, int] = {}  # length of the chain from each node
        self._tallest = 0
        self.deep = False

    def without_nodes(self) -> Graphs:
        """Return a reader that shares what is known of node classes, but no node."""
        other = Graphs(self._torch)
        other._saved = self._saved
        return other

    def of_tensor(self, tensor: Any) -> list[Any]:
        """Return a tensor's gradient and its graph's node.

        The gradient is read for leaves and for tensors that retain it.
        """
        kind = self._tensor
        found = []
        try:
            node = kind.grad_fn.__get__(tensor)
            if node is not None:
                found.append(node)
            if node is None or kind.retains_grad.__get__(tensor):  # otherwise reading it warns
                gradient = kind.grad.__get__(tensor)
                if gradient is not None:
                    found.append(gradient)
        except Exception as err:  # noqa: BLE001 - a wrapper without attributes
            reraise_if_from_signal(err)
        return found

    def of_sparse(self, tensor: Any) -> list[Any]:
        """Return the dense parts of a sparse tensor."""
        return [part for _, part in parts_of_sparse(self._torch, tensor)]

    def of_node(self, node: Any) -> list[Any]:
        """Return the next nodes of a node and the tensors that it has saved.

        No graph is followed further than `MAX_DEPTH`.
        """
        return [*self.next_nodes(node), *self.saved_by(node)]

    def next_nodes(self, node: Any) -> list[Any]:
        """Return the nodes of a node's `next_functions`, created before it."""
        if id(node) not in self._next_nodes:
            self.reachable_nodes([node])
        return self._next_nodes[id(node)]

    def reachable_nodes(self, roots: Iterable[Any], most: int | None = None) -> list[Any]:
        """Return the given nodes and all that they lead to, the latest first.

        Nodes that an earlier call returned are omitted.

        Args:
            roots: The nodes at which to begin.
            most: Maximum number of nodes; None for all.
        """
        count = itertools.count()
        queue = [(-sequence_nr_of(node), next(count), node) for node in roots]
        heapq.heapify(queue)
        depth = {id(node): 1 for _, _, node in queue}
        found: list[Any] = []
        while queue:
            node = heapq.heappop(queue)[-1]
            if id(node) in self._next_nodes:
                continue
            found.append(node)
            here = depth[id(node)]
            ends = is_leaf(node)
            full = here > MAX_DEPTH or self._tallest > 2 * MAX_DEPTH
            if not ends and (full or (most is not None and len(found) > most)):
                ends = self.deep = True
            edges = () if ends else node.next_functions
            self._next_nodes[id(node)] = before = [one for one, _ in edges if one is not None]
            for one in before:  # created earlier, so it is popped after all nodes that lead to it
                if id(one) not in self._next_nodes:
                    depth[id(one)] = max(depth.get(id(one), 0), here + 1)
                    heapq.heappush(queue, (-sequence_nr_of(one), next(count), one))
        for node in reversed(found):
            inner = [self._height.get(id(one), 0) for one in self._next_nodes[id(node)]]
            self._height[id(node)] = 0 if is_leaf(node) else 1 + max(inner, default=0)
            self._tallest = max(self._tallest, self._height[id(node)])
        return found

    def saved_by(self, node: Any) -> Iterator[Any]:
        """Yield what a node has saved for backward.

        A parameter's own node holds the parameter.
        """
        for slot in self._slots(type(node)):
            yield from _data(slot, node)

    def saves(self, node: Any) -> bool:
        """Return whether nodes of this kind save anything."""
        return bool(self._slots(type(node)))

    def _slots(self, kind: type) -> tuple[Any, ...]:
        known = self._saved.get(id(kind))
        if known is None:
            spaces = [namespace_of(base) for base in mro_of(kind)]
            slots = tuple(
                slot
                for space in spaces
                for name, slot in space.items()
                if name.startswith(_RAW)
                or (name == "variable" and name_of(kind) == "AccumulateGrad")
            )
            known = self._saved[id(kind)] = kind, slots
        return known[1]


def edges_of(outputs: Iterable[Any]) -> list[Any]:
    """Return the nodes of tensors, or of edges of a graph."""
    nodes = (getattr(o, "node", None) or getattr(o, "grad_fn", None) for o in outputs)
    return [node for node in nodes if node is not None]


def sequence_numbers_of(torch: Any, outputs: Iterable[Any], most: int) -> list[int] | None:
    """Return the sequence numbers of a graph's nodes; None if too large."""
    graphs = Graphs(torch)
    found = graphs.reachable_nodes(edges_of(outputs), most)
    return None if graphs.deep else [sequence_nr_of(node) for node in found]


def is_leaf(node: Any) -> bool:
    """Return whether a node is AccumulateGrad: the graph ends there."""
    return name_of(type(node)) == "AccumulateGrad"


def _data(slot: Any, node: Any) -> Iterator[Any]:
    try:
        saved = slot.__get__(node)
    except RuntimeError:  # freed by an earlier backward
        return
    for one in saved if type(saved) is tuple or type(saved) is list else (saved,):
        data = getattr(one, "data", None) if name_of(type(one)) == "SavedTensor" else one
        if data is not None:
            yield data
