"""Find gradients whose graphs lead back to their own tensors.

`backward(create_graph=True)` makes them: a parameter has a gradient, the gradient has a graph,
and the graph ends at the parameter. All three are C++ objects, so Python's collector does not find
the cycle. It ends only where the gradient is cleared.
https://docs.pytorch.org/docs/2.13/generated/torch.Tensor.backward.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.capture.interpreter.class_kinds import is_node
from nbmem.capture.tensors.autograd_graphs import Graphs
from nbmem.capture.tensors.modules import is_tensor
from nbmem.core.session.holders import Holder, HolderKind

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

HOLDER = Holder(
    HolderKind.GRADIENT_CYCLE,
    "a gradient's graph",
    "a gradient's graph, which leads back to its parameter",
)


def in_gradient_cycles(
    torch: Any, tensors: Mapping[int, Any]
) -> Generator[None, None, dict[int, Any]]:
    """Return the tensors that gradient cycles among some tensors keep, by id.

    Tensors that only the graphs have saved are included.

    Args:
        torch: The user's torch.
        tensors: Tensors that no place reaches, by id.
    """
    graphs = Graphs(torch)
    kept: dict[int, Any] = {}
    for key, tensor in tensors.items():
        yield
        gradients = filter(is_tensor, graphs.of_tensor(tensor))
        if key not in kept and any(graphs.of_tensor(gradient) for gradient in gradients):
            found = yield from _reached(graphs, tensor)
            if key in found:
                kept |= found
    return kept


def _reached(graphs: Graphs, tensor: Any) -> Generator[None, None, dict[int, Any]]:
    """Return the tensors that a tensor's gradient and graphs reach, by id."""
    found: dict[int, Any] = {}
    waiting, seen = [tensor], set[int]()
    while waiting:
        thing = waiting.pop()
        inside = graphs.of_tensor(thing) if is_tensor(thing) else graphs.of_node(thing)
        for inner in inside:
            if is_tensor(inner):
                found[id(inner)] = inner
            elif not is_node(type(inner)):
                continue  # what a hook has packed
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
        yield
    return found
