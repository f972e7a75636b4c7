"""Find what keeps alive the tensors that no place reaches.

These are reference cycles, libraries, and gradients whose graphs lead back to their tensors. For
these tensors the heap is searched backwards (backward_search.py).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nbmem.capture.heap.backward_search import CYCLE, BackwardSearch
from nbmem.capture.interpreter.class_kinds import is_node
from nbmem.capture.tensors.autograd_graphs import Graphs
from nbmem.capture.tensors.modules import is_tensor
from nbmem.core.session.holders import Holder, HolderKind

if TYPE_CHECKING:
    from nbmem.capture.heap.reachability import ForwardWalk

ALL_S = 0.03
"""Seconds that `all_tensors` takes among 300,000 objects."""
UNSEEN = "something that Python cannot see"


GRADIENT_CYCLE = Holder(
    HolderKind.GRADIENT_CYCLE,
    "a gradient's graph",
    "a gradient's graph, which leads back to its parameter",
)
"""The holder of a tensor in a cycle of C++ objects, which Python's collector does not find.

`backward(create_graph=True)` makes such cycles: a parameter has a gradient, the gradient has a
graph, and the graph ends at the parameter. It ends only where the gradient is cleared.
https://docs.pytorch.org/docs/2.13/generated/torch.Tensor.backward.html
"""


def all_tensors(torch: Any) -> dict[int, Any]:
    """Return every tensor that has a Python object, by id.

    An object refers to its class, so the collector finds the tensors in one call. That takes a
    tenth of a microsecond for each live object. It is the only step of a walk that cannot be
    divided.
    """
    kinds = {id(torch.Tensor): torch.Tensor}
    level = [torch.Tensor]
    while level:
        below = [kind for base in level for kind in type.__subclasses__(base)]
        level = list({id(kind): kind for kind in below if id(kind) not in kinds}.values())
        kinds.update((id(kind), kind) for kind in level)
    found = gc.get_referrers(*kinds.values())
    return {id(obj): obj for obj in found if id(type(obj)) in kinds}


def holders_of_unreached(
    reach: ForwardWalk,
    unreached: Mapping[int, Any],
    *,
    suspects: Callable[[], Iterable[Any]] = tuple,
    say_unseen: Callable[[], bool],
) -> Generator[None, None, dict[int, Holder]]:
    """Find the holders of unreached tensors, by the tensor's id.

    Args:
        reach: What was reached.
        unreached: The tensors, by id.
        suspects: Returns objects that may lead to them, such as models.
        say_unseen: Returns whether no other code has run meanwhile. Other code may have moved one
            of these tensors to an object that the walk had already visited. Then a tensor without a
            known holder is omitted, as it is where the search was not completed.
    """
    back = BackwardSearch(reach, unreached)
    yield from back.search(suspects)
    yield
    dead = back.unreferenced_members()
    yield
    found = {}
    for key in unreached:
        if key in dead:
            found[key] = Holder(HolderKind.CYCLE, CYCLE, back.cycle_of(key, dead))
        elif (label := back.label(key)) is not None:
            found[key] = label
        elif back.complete and say_unseen():
            found[key] = Holder(HolderKind.UNSEEN, UNSEEN, UNSEEN)
        yield
    return found


def in_gradient_cycles(
    torch: Any, tensors: Mapping[int, Any]
) -> Generator[None, None, dict[int, Any]]:
    """Return the tensors that gradient cycles among some tensors keep, by id.

    Tensors that only the graphs have saved are included.
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
        obj = waiting.pop()
        inside = graphs.of_tensor(obj) if is_tensor(obj) else graphs.of_node(obj)
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
