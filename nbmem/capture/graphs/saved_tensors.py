"""Name the tensors that a graph saved for backward after their modules.

The graph is read when a backward begins, while all of these tensors are alive. A node belongs to
the innermost module that was running when it was created (node_modules.py). If the node takes the
parameter of a module inside that one, it belongs to the latter. A node of a container follows the
module inside it that its first input comes from. So does a node outside of all modules: a loss.

Where calls were not recorded, the parameters alone show the modules, and a node without any is the
ReLU beside the module that it follows.

One graph of each kind of forward is read (2 ms for GPT-2), through `SavedTensor.data`, which runs
no hook. The ledger applies the names to all forwards with the same allocations. Tensors that
checkpointing recomputes stay unnamed. So do those of a forward that failed before any backward of
its kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from nbmem.capture.graphs.compiled_regions import NODE, Region, StorageOrigin, region_of
from nbmem.capture.graphs.node_modules import Caller, ModulePath, NodeModules, innermost_around
from nbmem.capture.tensors.active_registry import existing_since
from nbmem.capture.tensors.autograd_graphs import Graphs, edges_of, is_leaf
from nbmem.capture.tensors.operator_modules import class_of_operator, operator_module
from nbmem.capture.tensors.sequence_numbers import sequence_nr_of
from nbmem.capture.tensors.tensors import ObservedStorage, observe
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import SAVED_AFTER, SAVED_BY
from nbmem.core.session.tensor_parts import LOGITS

MAX_NODES = 50_000
"""Nodes of a graph that are read: about 0.1 s."""
_LOSSES = ("LogSoftmax", "NllLoss", "CrossEntropy")
"""Prefixes of the nodes of a loss that reads the scores of classes."""
_LOOKUP = "Embedding"
"""Prefix of the node names of `embedding` and `embedding_bag`, and of no others."""
_BACKWARD = re.compile(r"Backward\d*$")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")


class ModuleOf(Protocol):
    """A function that finds the module of a parameter."""

    def __call__(self, parameter: Any, *, lookup: bool) -> ModulePath | None:
        """Return the module that takes a parameter; None if unknown.

        With `lookup`, returns the module that looks up rows in the parameter, else one that uses it
        otherwise.

        An embedding and a head may share one parameter.
        """


class SavedStorage(NamedTuple):
    """A storage that a graph keeps for backward.

    Attributes:
        seen: The storage; its name continues the owner's.
        owner: The owner of the module that it is named after; None if no module is known.
    """

    seen: ObservedStorage
    owner: Any


def why_unreadable() -> str | None:
    """Return why this torch hides saved tensors; None if it shows them."""
    torch: Any = loaded_torch()
    if torch is None or hasattr(torch._C._autograd.SavedTensor, "data"):  # noqa: SLF001
        return None
    return f"torch {torch.__version__} does not show them, 2.11 and later do"


def saved_tensors(walk: GraphWalk) -> Iterator[SavedStorage]:
    """Yield the storages that a graph has saved, each once.

    No tensor is retained.
    """
    parameters = {addr for node in walk.nodes if (addr := walk.parameter_addr(node))}
    taken: set[int] = set()

    # A tensor saved by several nodes is named by a module's own node, or else by the earliest one.
    def rank(node: Any) -> tuple[bool, int]:
        return walk.module_at(node) is None, sequence_nr_of(node)

    for node in sorted(walk.nodes, key=rank):
        with existing_since(node):
            saved = enumerate(walk.saved_by(node))
            found = [
                (i, *walk.name_saved(node, one, walk.place_of_saved(node, i))) for i, one in saved
            ]
        for index, seen, owner in found:
            if seen is not None and seen.addr not in parameters:
                walk.named.append((node, index, seen, owner))
                if seen.addr not in taken:
                    taken.add(seen.addr)
                    yield SavedStorage(seen, owner)


class GraphWalk:
    """A walk through a graph that finds the module of each node.

    Args:
        outputs: Tensors, of which some may have a graph, or edges of one.
        module_of: Finds the module of a parameter.
        calls: The modules that created the nodes; None if no calls were recorded.

    Attributes:
        roots: The nodes of the outputs.
        nodes: Nodes behind the outputs. While they are retained, each has one id.
        named: What `saved_tensors` has found: node, index of the saved tensor, name, owner.
        graphs: The reader of the nodes.
    """

    def __init__(
        self, outputs: Iterable[Any], module_of: ModuleOf, calls: NodeModules | None = None
    ) -> None:
        torch: Any = loaded_torch()
        self._tensor = torch.Tensor
        self.graphs = Graphs(torch)
        self._module_of = module_of
        self._leaf: dict[int, Any] = {}
        self._own: dict[int, ModulePath | None] = {}
        self._calls = calls
        self._after: dict[int, ModulePath | None] = {}
        self._regions: dict[int, Region | None] = {}
        self._names: dict[int, tuple[ModulePath | None, bool]] = {}
        self.roots = edges_of(outputs)
        self.nodes = self.graphs.reachable_nodes(self.roots, MAX_NODES)
        self.named: list[tuple[Any, int, ObservedStorage, Any]] = []

    def parameter_addr(self, node: Any) -> int:
        """Return the address of a leaf node's parameter; 0 for other nodes."""
        if not is_leaf(node):
            return 0
        seen = observe(node.variable, Category.WEIGHTS, "", form=False)
        return 0 if seen is None else seen.addr

    def saved_by(self, node: Any) -> Iterator[Any]:
        """Yield the tensors that a node has saved."""
        if not is_leaf(node):
            for value in self.graphs.saved_by(node):
                if issubclass(type(value), self._tensor):
                    yield value

    def region_at(self, node: Any) -> Region | None:
        """Return the compiled region of a node; None for any other node."""
        if node.name() != NODE:
            return None
        if id(node) not in self._regions:
            edges = [edge for edge, _ in node.next_functions]
            leaves = [None if edge is None else self.leaf_behind(edge) for edge in edges]
            modules = [None if leaf is None else self.module_of_leaf(leaf) for leaf in leaves]
            region = self._regions[id(node)] = region_of(node, modules)
            if region is not None:
                region.learn_shapes([_shape(tensor) for tensor in self.saved_by(node)])
        return self._regions[id(node)]

    def place_of_saved(self, node: Any, index: int) -> StorageOrigin | None:
        """Return the origin of a tensor that a compiled region saved, or None.

        An argument that another region computed has its origin there.
        """
        region = self.region_at(node)
        place = None if region is None else region.saved(index)
        if not isinstance(place, int):
            return place
        before, index = node.next_functions[place]
        region = None if before is None else self.region_at(before)
        return None if region is None else region.result(index)

    def name_saved(
        self, node: Any, tensor: Any, place: StorageOrigin | None = None
    ) -> tuple[ObservedStorage | None, Any]:
        """Name a saved tensor after its module; also return the module's owner.

        Args:
            node: The node that has saved it.
            tensor: The tensor.
            place: Its origin in a compiled region, if that is known.
        """
        if place is not None and (place.module is not None or place.operator):
            seen = observe(tensor, Category.ACTIVATIONS, "")
            if seen is None:
                return None, None
            name, before, owner = place.named(SAVED_BY, SAVED_AFTER, seen.name.strip())
            return seen._replace(name=name, before=before), owner
        module, is_own = self._named_module(node)
        if module is None:
            return observe(tensor, Category.ACTIVATIONS, f"{SAVED_BY}{self.operator(node)}"), None
        seen = observe(tensor, Category.ACTIVATIONS, module.path)
        before = SAVED_BY if is_own else SAVED_AFTER
        part = LOGITS if self._is_logits(node, tensor, module) else ""
        return seen and seen._replace(before=before, part=part), module.owner

    def _is_logits(self, node: Any, tensor: Any, module: ModulePath) -> bool:
        """Return whether a loss has saved a vocabulary's scores.

        Their width is that of an embedding of the same model.
        """
        if not node.name().startswith(_LOSSES):
            return False
        tree = getattr(module.owner, "tree", None)
        places = () if tree is None else tree.parameters
        words = {
            _shape(one)[0] for place in places if place.lookup and (one := place.ref()) is not None
        }
        return bool(words) and _shape(tensor)[-1:] in {(width,) for width in words}

    def operator(self, node: Any) -> str:
        """Return the operator that a node is the backward of: `log_softmax`."""
        return _operator_of(node.name())

    def result_of(self, node: Any, index: int = 0) -> ModulePath:
        """Return the module path of a node's result, or else its operator."""
        region = self.region_at(node)
        place = None if region is None else region.result(index)
        if place is not None and place.module is not None:
            return place.module._replace(path=place.path)
        module, _ = self._named_module(node)
        return module or ModulePath(None, self.operator(node))

    def _named_module(self, node: Any) -> tuple[ModulePath | None, bool]:
        """Return the module after which a node is named, and whether it runs it.

        The path includes the operator, unless the module is made for it. A node that the module
        does not run follows it.
        """
        if id(node) not in self._names:
            self._names[id(node)] = self._name_module(node)
        return self._names[id(node)]

    def _name_module(self, node: Any) -> tuple[ModulePath | None, bool]:
        operator = f" ({self.operator(node)})"
        own = self.own_module(node)
        if own is not None:
            return own, True
        caller, before = self._caller(node), self._module_before(node)
        if caller is None:
            own = self._operator_module(node, before)
            if own is not None:
                return own, True
            after = before and before._replace(path=f"{before.path}{operator}")
            return after, False
        place = caller.place
        if self._calls and before and before.is_in(place) and not before.is_same(place):
            after = self._calls.outermost_called(before, place)
            return after._replace(path=f"{after.path}{operator}"), False
        return place._replace(path=f"{place.path}{operator}"), True

    def own_module(self, node: Any) -> ModulePath | None:
        """Return the module that is made for a node's operator, or None.

        It has the parameter that the node takes, or it is the innermost one, with parameters or a
        name of its own, that ran.
        """
        module, caller = self.module_at(node), self._caller(node)
        if caller is None or (module is not None and module.is_in(caller.place)):
            return module
        is_own = caller.is_leaf and (
            caller.has_parameters or caller.kind == class_of_operator(self.operator(node))
        )
        return caller.place if is_own or node.name() == NODE else None

    def _caller(self, node: Any) -> Caller | None:
        """Return the innermost module that created a node; None if unknown."""
        if self._calls is None or is_leaf(node):
            return None
        return self._calls.caller(sequence_nr_of(node))

    def _operator_module(self, node: Any, before: ModulePath | None) -> ModulePath | None:
        """Return the module without parameters that computes a node, or None.

        Where calls were recorded, they show it.
        """
        if self._calls is not None and self._calls.covers(sequence_nr_of(node)):
            return None
        tree = None if before is None else getattr(before.owner, "tree", None)
        if before is None or tree is None or node.name() == NODE:
            return None
        path = operator_module(tree, before.path, self.operator(node))
        return None if path is None else before._replace(path=path)

    def ends_in_parameter(self, node: Any) -> bool:
        """Return whether a node only passes on a parameter, cast or transposed."""
        return is_leaf(node) or self.leaf_behind(node) is not None

    def module_of_leaf(self, leaf: Any) -> ModulePath | None:
        """Return the module of a leaf node's parameter, by its first place."""
        return self._module_of(leaf.variable, lookup=False)

    def module_at(self, node: Any) -> ModulePath | None:
        """Return the module of which a node takes a parameter, or None.

        The parameter may be cast or transposed. For a compiled region, it is the innermost module
        that contains all modules whose parameters the region takes.
        """
        if id(node) not in self._own:
            lookup = node.name().startswith(_LOOKUP)
            leaves = (self.leaf_behind(before) for before in self.graphs.next_nodes(node))
            modules = (self._module_of(leaf.variable, lookup=lookup) for leaf in leaves if leaf)
            known = (module for module in modules if module is not None)
            of_region = node.name() == NODE
            self._own[id(node)] = innermost_around(list(known)) if of_region else next(known, None)
        return self._own[id(node)]

    def leaf_behind(self, node: Any) -> Any:
        """Return the leaf of the only parameter that a node's result is made of.

        None if the result has more than one such parameter, or if no module has the parameter.
        """
        way = []
        while id(node) not in self._leaf:
            way.append(node)
            before = self.graphs.next_nodes(node)
            if is_leaf(node):
                known = self.module_of_leaf(node) is not None
                self._leaf[id(node)] = node if known else None
            elif len(before) != 1 or self.graphs.saves(node):
                self._leaf[id(node)] = None
            else:
                node = before[0]
        for passed in way:
            self._leaf[id(passed)] = self._leaf[id(node)]
        return self._leaf[id(node)]

    def _site(self, node: Any) -> ModulePath | None:
        """Return the innermost module known of a node, or None."""
        own, caller = self.own_module(node), self._caller(node)
        return own if own is not None or caller is None else caller.place

    def _module_before(self, node: Any) -> ModulePath | None:
        """Return the nearest other module along the chain of first inputs.

        None if there is none. The nodes that the same module runs itself are skipped.
        """
        caller = self._caller(node)
        place = None if caller is None else caller.place
        way = []
        found: ModulePath | None = None
        while id(node) not in self._after:
            way.append(node)
            before = self.graphs.next_nodes(node)
            if not before:
                break
            site = self._site(before[0])
            if site is not None and (place is None or not site.is_same(place)):
                found = site
                break
            node = before[0]
        found = found or self._after.get(id(node))
        for passed in way:
            same = self._caller(passed)
            if (same and same.place) == place:  # another's nearest other module may be this one
                self._after[id(passed)] = found
        return found


def planned_buffers(walk: GraphWalk) -> Iterator[ObservedStorage]:
    """Yield the buffers of a graph's compiled regions in order.

    Buffers of the forwards come first, then those of the backwards, the latest region first.
    """
    nodes = [node for node in walk.nodes if walk.region_at(node) is not None]
    for direction in (Category.ACTIVATIONS, Category.TEMPORARIES):
        forward = direction is Category.ACTIVATIONS
        for node in sorted(nodes, key=sequence_nr_of, reverse=not forward):
            region, card = walk.region_at(node), _card(walk, node)
            for seen in () if region is None or card is None else region.planned(card):
                if seen.category is direction:
                    yield seen


def _card(walk: GraphWalk, node: Any) -> int | None:
    """Return the GPU of a node's saved tensors; None if they are on none."""
    places = (observe(one, Category.ACTIVATIONS, "", form=False) for one in walk.saved_by(node))
    return next((seen.device for seen in places if seen is not None), None)


@lru_cache(maxsize=1_000)
def _operator_of(name: str) -> str:
    return _HUMP.sub("_", _BACKWARD.sub("", name)).lower()


def _shape(tensor: Any) -> tuple[int, ...]:
    torch: Any = loaded_torch()
    return tuple(map(int, torch.Tensor.size(tensor)))
