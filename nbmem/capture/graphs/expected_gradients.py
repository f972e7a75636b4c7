"""Predict which gradients a backward will make, in the engine's order.

Gradients are named after the results of forward to which they belong.

Every node of a graph has the shapes of its forward's results (`_input_metadata`). The engine runs
the latest node first, and a node computes one gradient for each of its inputs. Nothing is run or
hooked: the reader compares this list with the allocations (report/ledger/gradients.py).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.tensors.autograd_graphs import is_leaf
from nbmem.capture.tensors.sequence_numbers import sequence_nr_of
from nbmem.capture.tensors.tensors import ObservedStorage
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import ADDED_TO, GRADIENT_IN, GRADIENT_OF

if TYPE_CHECKING:
    from nbmem.capture.graphs.saved_tensors import GraphWalk

_RESULTS = Category.OUTPUT_GRADIENTS
NOWHERE = 0
"""Address of a tensor that is not allocated yet."""
SMALLEST = 64 * 1024
"""Bytes from which a gradient is named."""
_HANDS_ON = frozenset(
    (
        "Add",
        "Alias",
        "Clone",
        "Diagonal",
        "Expand",
        "Narrow",
        "Permute",
        "Reshape",
        "Select",
        "Slice",
        "Split",
        "SplitWithSizes",
        "Squeeze",
        "Sum",
        "Swapaxes",
        "T",
        "Transpose",
        "UnsafeView",
        "Unsqueeze",
        "View",
        "Unbind",
    )
)
"""Nodes that pass on their gradient, or a view of it: they allocate none."""


def expected_gradients(walk: GraphWalk) -> Iterator[ObservedStorage]:
    """Yield the gradients that a graph's backward will make, in order.

    They have the address `NOWHERE`.

    Those of parameters are GRADIENTS, `added to` the parameter's gradient: a parameter that is used
    twice gets two. Those of results are OUTPUT_GRADIENTS, named after the module that computed the
    result. `gradient in` either is a sum that may be computed in place.
    """
    nodes = walk.nodes
    inward = Counter(id(after) for node in nodes for after, _ in node.next_functions)
    place = {id(node): i for i, node in enumerate(nodes)}
    ready = [(-sequence_nr_of(node), i) for i, node in enumerate(nodes) if not inward[id(node)]]
    heapq.heapify(ready)
    reached: set[tuple[int, int]] = set()
    while ready:
        node = nodes[heapq.heappop(ready)[1]]
        makes = walk.operator(node).title().replace("_", "") not in _HANDS_ON
        for after, index in node.next_functions:
            if after is None or id(after) not in place:
                continue
            if makes:
                yield from _gradient(walk, after, index, GRADIENT_OF)
            result = id(after), index
            if result in reached:  # the engine sums repeated ones
                yield from _gradient(walk, after, index, GRADIENT_IN)
            reached.add(result)
            inward[id(after)] -= 1
            if not inward[id(after)]:
                heapq.heappush(ready, (-sequence_nr_of(after), place[id(after)]))


def _gradient(walk: GraphWalk, node: Any, index: int, before: str) -> Iterator[ObservedStorage]:
    """Yield the gradient of one result of a node's forward.

    Yields nothing if it is smaller than `SMALLEST` or on the CPU.
    """
    torch: Any = loaded_torch()
    result = _result(node, index)
    if result is None or result.size < SMALLEST or result.device.type == torch.device("cpu").type:
        return
    card = result.device.index or 0
    if walk.ends_in_parameter(node):
        added = _added(walk, node, before, result.dtype)
        yield ObservedStorage(card, NOWHERE, result.size, Category.GRADIENTS, *added)
        return
    module = walk.result_of(node, index)
    path = module.path if module.owner is not None else f"{before}{module.path}"
    name = f"{path} {result.shape} {result.dtype}"
    yield ObservedStorage(card, NOWHERE, result.size, _RESULTS, name, before, module.owner)


def _added(walk: GraphWalk, node: Any, before: str, dtype: str) -> tuple[str, str, Any]:
    """Name what one use of a parameter adds to its gradient.

    Returns the name, its prefix and the owner. These are empty, empty and None if the module is not
    known.

    A single one becomes the gradient; others are freed after they were added. It has the
    parameter's shape; its dtype is that of a cast.
    """
    leaf = node if is_leaf(node) else walk.leaf_behind(node)
    module, own = walk.module_of_leaf(leaf), _result(leaf, 0)
    if module is None or own is None:
        return "", "", None
    sums = GRADIENT_IN if before == GRADIENT_IN else ""
    name = f"{module.parameter}.grad {own.shape} {dtype}"
    return name, f"{sums}{ADDED_TO}", module.owner


class _Result(NamedTuple):
    """A result of a node's forward: its shape, dtype, bytes and device."""

    shape: tuple[int, ...]
    dtype: str
    size: int
    device: Any


def _result(node: Any, index: int) -> _Result | None:
    """Return a result of a node's forward; None if it cannot be read."""
    try:
        result = node._input_metadata[index]  # noqa: SLF001 - hasattr would read it, too
        shape, dtype, device = tuple(map(int, result.shape)), result.dtype, result.device
    except Exception as err:  # noqa: BLE001 - another release, a nested tensor, a user's node
        reraise_if_from_signal(err)
        return None
    name = str(dtype).removeprefix("torch.")
    return _Result(shape, name, prod(shape) * dtype.itemsize, device)
