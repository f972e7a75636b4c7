"""What a backward is about to make, in the engine's order: gradients are named after results.

Every node of a graph knows the shapes of its forward's results (`_input_metadata`), the engine runs
the node that was made last first, and a node makes one gradient for each result that it was given.
Nothing is run or hooked: reading compares this list with what was allocated (ledger/gradients.py).
"""

from __future__ import annotations

import heapq
from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any

from nbmem.core.categories import Category
from nbmem.core.interrupts import let_pass
from nbmem.core.names import GRADIENT_IN, GRADIENT_OF
from nbmem.probes.cuda import loaded_torch
from nbmem.probes.holders.graphs import made_at
from nbmem.probes.tensors import Seen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.probes.saved import GraphWalk

_RESULTS = Category.OUTPUT_GRADIENTS
NOWHERE = 0
"""Address of what is yet to be made."""
SMALLEST = 64 * 1024
"""Bytes of a gradient that is worth a name."""
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
"""Nodes that hand on the gradient that they get, or a view of it: they make none."""


def expected_gradients(walk: GraphWalk) -> Iterator[Seen]:
    """The gradients that the backward through a graph makes, in order; at `NOWHERE` yet.

    Those of parameters are GRADIENTS, those of results OUTPUT_GRADIENTS, named after the module
    that made the result; `gradient in` it is a sum that may be made in place.
    """
    nodes = walk.nodes
    inward = Counter(id(after) for node in nodes for after, _ in node.next_functions)
    place = {id(node): i for i, node in enumerate(nodes)}
    ready = [(-made_at(node), i) for i, node in enumerate(nodes) if not inward[id(node)]]
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
            if result in reached:  # the engine adds what has come twice
                yield from _gradient(walk, after, index, GRADIENT_IN)
            reached.add(result)
            inward[id(after)] -= 1
            if not inward[id(after)]:
                heapq.heappush(ready, (-made_at(after), place[id(after)]))


def _gradient(walk: GraphWalk, node: Any, index: int, before: str) -> Iterator[Seen]:
    """The gradient of one of a node's forward's results."""
    torch: Any = loaded_torch()
    try:
        result = node._input_metadata[index]  # noqa: SLF001 - hasattr would read it, too
        shape, dtype, device = tuple(map(int, result.shape)), result.dtype, result.device
    except Exception as err:  # noqa: BLE001 - another release, a nested tensor, a user's node
        let_pass(err)
        return
    size = prod(shape) * dtype.itemsize
    if size < SMALLEST or device.type == torch.device("cpu").type:
        return
    card, form = device.index or 0, f"{shape} {str(dtype).removeprefix('torch.')}"
    if walk.ends_in_parameter(node):
        yield Seen(card, NOWHERE, size, Category.GRADIENTS, "")
        return
    module = walk.result_of(node)
    path = module.path if module.owner is not None else f"{before}{module.path}"
    yield Seen(card, NOWHERE, size, _RESULTS, f"{path} {form}", before, module.owner)
