"""Record which storage is which tensor, as observed at counter samples.

Observations are collected while the cell runs and placed among the events later.
"""

from __future__ import annotations

import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbmem.capture.distributed.parallel_wrappers import (
    ddp_buckets,
    fsdp2_substitutes,
    is_sharded,
    shards_and_gathered,
    weights_and_buffers,
)
from nbmem.capture.graphs.expected_gradients import expected_gradients
from nbmem.capture.graphs.graph_matching import GraphPattern
from nbmem.capture.graphs.node_modules import ModulePath, NodeModules
from nbmem.capture.graphs.saved_tensors import (
    GraphWalk,
    planned_buffers,
    saved_tensors,
    why_unreadable,
)
from nbmem.capture.record.storage_registry_log import StorageLog
from nbmem.capture.record.tensor_label_rows import Batch, IdentityRows
from nbmem.capture.record.time_budget import TimeBudget
from nbmem.capture.record.tracked_objects import (
    Footprint,
    LocalNames,
    NotebookPaths,
    OptimizerParameter,
    Parameter,
    SearchedModules,
    ThreadObjects,
    TrackedObject,
    get_tracked,
    live_objects,
    state_footprint,
)
from nbmem.capture.record.weight_changes import ASKED
from nbmem.capture.tensors import frames, modules, tensors
from nbmem.capture.tensors.active_registry import active_registry
from nbmem.capture.tensors.autograd_graphs import DEEPEST, edges_of
from nbmem.capture.tensors.gradient_refresh import gradient_reader
from nbmem.capture.tensors.kv_caches import CacheCollector, CacheLog, given_caches, without_caches
from nbmem.capture.tensors.module_tree import TensorPlace, tree_of
from nbmem.capture.tensors.optimizers import (
    OtherOptimizers,
    parameters_of_optimizer,
    state_of_optimizer,
)
from nbmem.capture.tensors.running_modules import BACKWARDS, ModuleCalls
from nbmem.capture.tensors.tensor_storages import form_of
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.categories import OF_TRAINING, Category
from nbmem.core.session.tensor_names import common_path
from nbmem.core.session.variable_paths import parse_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from nbmem.capture.record.training_loop import TrainingLoop
    from nbmem.capture.tensors.module_tree import ModuleTree

MAX_ROWS = 300_000
"""Limit of observations. Later tensors are distinguished by allocation and lifetime (with a
note)."""
MAX_WALKS = 8
"""How often a state that changes in each step is recorded; later steps are like those."""
_LAYERS = "calls of layers"
MAX_FORWARDS = 256
"""Kinds of forwards whose graphs are read. With varying lengths each step is another kind."""
MAX_PATTERNS = 4
"""Graphs of one module with which others are compared."""
MOST_ASKED = 256
"""Parameters of an idle model that are checked for a gradient after each backward."""
MOST_DESCRIBED = 500
"""Modules whose class, size and switches are described."""
STEP = 1_000
"""Tensors that are recorded at once: a few milliseconds."""


class TensorLabelLog:
    """Records modules, optimizers and tensors without holding any of them.

    Gradients are read for each thread: those of parameters that its loop's modules and optimizers
    have used. Objects that the notebook names belong to the home thread, which runs the cells,
    until another thread uses them.

    Attributes:
        full: Whether observations were left out.
        rows: What was observed.
        last_gradients: The gradients observed last.
        unread: Why graphs are no longer read; None while they are.
        deep: Whether a graph had a longer chain of nodes than is followed.
        storage_log: Holds the storage registry for memory that is on no CUDA card.
        module_calls: Records which modules create a graph's nodes.
        time_budget: Limits how many graphs are read where no allocator history covers the memory.
    """

    def __init__(self) -> None:
        self.rows = IdentityRows()
        self._modules: dict[int, TrackedObject] = {}
        self._optimizers: dict[int, TrackedObject] = {}
        self._locals = LocalNames()
        self._paths = NotebookPaths()
        self._searched_modules = SearchedModules()
        self._parameters: dict[int, Parameter] = {}  # those that were looked up
        self._trees: dict[int, tuple[TrackedObject, ModuleTree]] = {}  # of named modules
        self._objects_by_loop: dict[int, ThreadObjects] = {}
        self._home: int | None = None  # the home thread's loop, if it trains
        self._named: set[int] = set()
        self._walked: dict[int, Footprint] = {}
        self._sharded: set[int] = set()
        self._states: dict[int, tuple[tuple[int, ...], int]] = {}
        self._patterns: dict[tuple[Any, ...], list[GraphPattern]] = {}
        self._forwards: dict[tuple[Any, ...], bool] = {}  # whether read with the calls inside
        self.module_calls = ModuleCalls()
        self._caches = CacheLog()
        self._earlier = 0  # how often graphs of variables were read
        self._sites = frames.CallSites()
        self.full = False
        self.last_gradients = Batch(-1, (), None)
        self.unread: str | None = None
        self.deep = False
        self.storage_log = StorageLog()
        self.time_budget = TimeBudget()

    # --- while the cell runs

    def begin_loop(self, loop: int) -> None:
        """Register a thread that begins to train, under this number."""
        self._objects_by_loop[loop] = ThreadObjects()

    def called(
        self,
        mark: int,
        module: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        loop: TrainingLoop,
    ) -> None:
        """Record the module and the inputs of a call that has ended.

        Layers that a program calls one by one inside a forward are recorded within the time budget.
        """
        if id(module) == loop.root:
            self._record_call(mark, module, args, kwargs, loop)
            return
        with self.time_budget.spend(_LAYERS) as granted:
            if granted:
                self._record_call(mark, module, args, kwargs, loop)

    def _record_call(
        self,
        mark: int,
        module: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        loop: TrainingLoop,
    ) -> None:
        with self.storage_log.dating_back_to(loop.called_at):
            self.module(mark, module, loop.number)
            self.inputs(mark, args, kwargs)

    def begins(self, mark: int, module: Any, loop: TrainingLoop) -> None:
        """Record a module's tensors at its first call, before it runs.

        The call may replace their memory.
        """
        if id(module) not in self._walked:
            self._add(mark, weights_and_buffers(module), get_tracked(self._modules, module))
        self._record_unused_forward(mark, loop)

    def module(self, mark: int, module: Any, loop: int) -> None:
        """Record a module's weights and buffers, unless they have not moved.

        From then on the module and its parameters belong to this loop.
        """
        walked = self._walked.get(id(module))
        moved = walked is None or not walked.holds()
        known = get_tracked(self._modules, module)
        if moved:
            tree = tree_of(module)
            self._learn_module(known, module, tree)
            self._walked[id(module)] = Footprint(tree)
            self._add(mark, weights_and_buffers(module, tree), known)
            self._add(mark, ddp_buckets(module), known)
            (self._sharded.add if is_sharded(module) else self._sharded.discard)(id(module))
        elif id(module) in self._sharded:
            # What FSDP gathers is new memory in each step, even at the same address.
            self._add(mark, shards_and_gathered(module), known)
        shown = self._objects_by_loop[loop]
        if moved or id(module) not in shown.owners:
            shown.owners.add(id(module))
            found = (known.tree or tree_of(module)).parameters_once()
            shown.parameters.update(id(p) for p in found if not tensors.is_wrapped(p))

    def record_transient(self, mark: int, seen: Iterable[tensors.ObservedStorage]) -> None:
        """Record short-lived storages within a phase, many times a step.

        They may fill half of MAX_ROWS.
        """
        if self.rows.count < MAX_ROWS // 2:
            self._extend(mark, seen, None)

    def inputs(self, mark: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record a call's inputs, and the names of tensors in its callers.

        The callers' variables are read at each new call site. Elsewhere they are read only within
        the time budget.
        """
        caches = given_caches(args, kwargs)
        if caches:
            self.caches(mark, caches)
            args, kwargs = without_caches(args, kwargs, caches)
        del caches
        self._add(mark, tensors.inputs_of_call(args, kwargs))
        if self._sites.is_new():
            kept: list[Any] = []
            self._variables(mark, kept.append)
            self._earlier_graphs(mark, kept)
        elif active_registry() is not None:
            self._record_variables_in_budget(mark)

    def caches(self, mark: int, caches: Iterable[Any]) -> None:
        """Record what caches of language models hold, if it has changed."""
        self._add(mark, self._caches.changed(caches))

    def gradients(
        self, mark: int, loop: int, others: Mapping[int, bool], *, at_end: bool = False
    ) -> list[Any]:
        """Record the gradients of a thread's parameters.

        It runs once for each backward, so it must be fast.

        Args:
            mark: The counter sample at the backward's end.
            loop: The loop to which the backward belongs.
            others: Loops of other live threads, and whether each is inside a call now.
            at_end: Whether this is a cell's start or end, where every named model is read.

        Returns:
            A few of the parameters, which must not be retained.
        """
        if not self._has_room():
            return []
        own = self._objects_by_loop[loop].parameters
        if loop == self._home:
            own = own.union(
                self._named.difference(*(self._objects_by_loop[o].parameters for o in others)),
                self._idle_with_gradients(others, few=not at_end),
            )
        for other, busy in others.items():
            own = own - self._objects_by_loop[other].parameters if busy else own
        found: list[tensors.ObservedStorage] = []
        asked: list[Any] = []
        again = gradient_reader()
        for key in own:
            known = self._parameters.get(key)
            parameter = None if known is None else known.ref()
            if known is None or parameter is None:
                continue
            if len(asked) < ASKED and tensors.requires_grad(parameter):
                asked.append(parameter)
            last = known.gradient
            seen = again(parameter, last) if again is not None and last is not None else None
            seen = seen or self._gradient(known, parameter)
            if seen is not None:
                known.gradient = seen
                found.append(seen)
        if len({seen.addr for seen in found}) < len(found):
            found = _named_after_all(found)
        self.last_gradients = self.rows.add(mark, found)
        return asked

    def _idle_with_gradients(self, others: Iterable[int], *, few: bool) -> set[int]:
        """Find parameters with gradients in named models that no call has used.

        Args:
            others: Loops of other threads, whose parameters are skipped.
            few: Check a few parameters of each model, and all only if one of these has a gradient.
        """
        found: set[int] = set()
        for known, tree in self._trees.values():
            if known.ref() is None or id(known.ref()) in self._walked:
                continue
            with self.time_budget.spend("gradients of idle models") as granted:
                theirs = [self._objects_by_loop[other].parameters for other in others]
                keys = set(tree.places).difference(*theirs) if any(theirs) else tree.places
                asked = islice(keys, 0, None, len(keys) // MOST_ASKED + 1)
                if few and not (granted and tree.with_gradient(asked)):
                    continue
                for parameter in tree.all_with_gradient(keys):
                    if self._owner_of(parameter) is not None:
                        found.add(id(parameter))
        return found

    def _gradient(self, known: Parameter, parameter: Any) -> tensors.ObservedStorage | None:
        """Describe a parameter's gradient; return None if it has none."""
        gradient = tensors.gradient_of(parameter)
        if gradient is None:
            return None
        known.form = known.form or form_of(loaded_torch(), gradient)
        name = f"{known.path}.grad {known.form}"
        seen = tensors.observe(gradient, Category.GRADIENTS, name, form=False)
        if seen is None:  # a sparse one, perhaps
            name = f"{known.path}.grad"
            seen = next(tensors.observe_parts(gradient, Category.GRADIENTS, name), None)
        return None if seen is None else seen._replace(of=known.owner)

    def saved(
        self, mark: int, outputs: Iterable[Any], forward: tuple[Any, ...] | None = None
    ) -> None:
        """Record what a graph has saved for backward.

        A graph is skipped if a forward of the same kind was recorded before.

        Args:
            mark: The counter sample at the backward's beginning, or at the recording's end.
            outputs: Tensors with a graph, or edges of a graph.
            forward: A key shared by forwards with the same allocations. Their names are transferred
                when the recording is read (ledger/repeated_steps.py). None always reads the graph.
        """
        if self.unread is not None or not self._has_room():
            return
        inside = self.module_calls.ends_in_backward()
        # Without an allocator history, each graph shows what it keeps alive.
        if active_registry() is not None:
            with self.time_budget.spend(forward) as granted:
                if granted and not self._read_by_pattern(mark, outputs, forward):
                    # No pattern matches: read it even if its key was read before.
                    known = None if forward in self._forwards else forward
                    self._read_graph(mark, outputs, known, forward, inside=inside)
            return
        self._read_graph(mark, outputs, forward, inside=inside)

    def _read_by_pattern(
        self, mark: int, outputs: Iterable[Any], kind: tuple[Any, ...] | None
    ) -> bool:
        """Record a graph's saved tensors by comparing it with known patterns.

        Returns False if it matches none, or if the comparison fails.
        """
        if kind not in self._patterns:
            return False
        try:
            roots = edges_of(outputs)
            for pattern in self._patterns[kind]:
                found = pattern.saved(roots)
                if found is not None:
                    self.rows.add(mark, [_with_owner(seen, owner) for seen, owner in found])
                    return True
        except Exception as err:  # noqa: BLE001 - as for a graph that is read whole, below
            reraise_if_from_signal(err)
        return False

    def _learn_pattern(self, kind: tuple[Any, ...] | None, graph: GraphWalk) -> None:
        """Remember a graph as a pattern for similar ones."""
        if kind is not None and len(self._patterns.setdefault(kind, [])) < MAX_PATTERNS:
            pattern = GraphPattern(graph)
            self._patterns[kind] += [pattern] if pattern.holds else []

    def _read_graph(
        self,
        mark: int,
        outputs: Iterable[Any],
        forward: tuple[Any, ...] | None,
        kind: tuple[Any, ...] | None = None,
        *,
        inside: bool,
    ) -> None:
        self.module_calls.wanted -= 1
        if forward is not None:
            known = self._forwards.get(forward)
            if known or (known is not None and not inside):
                return
            if known is None and len(self._forwards) >= MAX_FORWARDS:
                return
            self._forwards[forward] = inside
            self.module_calls.wanted = BACKWARDS
        self.unread = why_unreadable()
        if self.unread is not None:
            return
        try:
            calls = NodeModules(self.module_calls.innermost(), self._place_of_module)
            graph = GraphWalk(outputs, self._module_of, calls)
            self.deep = self.deep or graph.graphs.deep
            found = list(saved_tensors(graph))
            if inside:
                self._learn_pattern(kind, graph)
            expected = list(expected_gradients(graph) if forward else ())
            expected += planned_buffers(graph) if forward and active_registry() is None else ()
        except Exception as err:  # noqa: BLE001 - an unknown kind of graph
            reraise_if_from_signal(err)
            self.unread = repr(err)
        else:
            self.rows.add(mark, [*(_with_owner(seen, owner) for seen, owner in found), *expected])
        if forward is not None and len(self._forwards) <= MAX_WALKS:
            self._variables(mark)

    def _variables(self, mark: int, made: Callable[[Any], None] | None = None) -> None:
        """Record the tensors in variables of this thread's running functions.

        These names end with their function's name.
        """
        if self._has_room():
            others, caches = OtherOptimizers(self._states), CacheCollector()
            names = tensors.NameCallbacks(
                caches.also(others.add_candidate),
                self._member,
                self._set_variable,
                self._set_path,
                made,
            )
            variables = frames.caller_variables()
            self._extend(mark, tensors.in_frames(variables, names), None)
            self.caches(mark, caches.pop())
            self._extend(mark, others.pop_state(self._named_member), None)
            for where, local in variables:
                for name, optimizer in tensors.optimizers_in(local) if where else ():
                    known = get_tracked(self._optimizers, optimizer)
                    self._locals.set_name(name, known, where.removeprefix(" of "))

    def _earlier_graphs(self, mark: int, kept: list[Any]) -> None:
        """Record what graphs of the loop's variables keep alive.

        A backward may never run for these graphs, as for a GAN that samples images without no_grad.
        If several threads train, a graph may belong to another one, so none is read.
        """
        if kept and len(self._objects_by_loop) == 1 and self._earlier < MAX_WALKS:
            self._earlier += 1
            self.saved(mark, kept)

    def _record_variables_in_budget(
        self, mark: int, made: Callable[[Any], None] | None = None
    ) -> None:
        """Record the variables' tensors if the time budget allows it.

        This includes steps like earlier ones, where no allocator history shows what a list has
        gained.
        """
        with self.time_budget.spend("variables") as granted:
            if granted:
                self._variables(mark, made)

    def _record_unused_forward(self, mark: int, loop: TrainingLoop) -> None:
        """Record what graphs keep of a forward that no backward has followed.

        It applies where there is no allocator history. The graphs are those that this loop's
        variables hold, such as a sum of losses or a list of results.
        """
        if loop.waits_since is None or active_registry() is None or len(self._objects_by_loop) > 1:
            return
        kept: list[Any] = []
        self._record_variables_in_budget(mark, kept.append)
        with self.storage_log.dating_back_to(loop.waits_since):
            self.saved(mark, kept)

    def _owner_of(self, parameter: Any) -> tuple[TrackedObject | OptimizerParameter, str] | None:
        """Return the owner of a parameter, and the path there; None if unknown.

        The owner is a module, or else the parameter's place in an optimizer.
        """
        known = self._parameters.get(id(parameter))
        if known is None or known.ref() is not parameter:
            for known_as, tree in self._trees.values():
                self._register_parameter(known_as, tree, parameter)
            known = self._parameters.get(id(parameter))
        if known is None or known.ref() is not parameter:
            return None
        return known.owner, known.path

    def _member(self, parameter: Any) -> tuple[TrackedObject, str] | None:
        """Return the module that has a parameter, and the path there, or None."""
        found = self._owner_of(parameter)
        return (
            None
            if found is None or isinstance(found[0], OptimizerParameter)
            else (found[0], found[1])
        )

    def _named_member(
        self, parameter: Any
    ) -> tuple[TrackedObject | OptimizerParameter, str] | None:
        """Return the module or variable that has a parameter, and the path.

        Returns None if only an optimizer has the parameter.
        """
        found = self._owner_of(parameter)
        place = None if found is None else found[0]
        return None if isinstance(place, OptimizerParameter) and place.called is None else found

    def _set_path(self, way: str, module: Any) -> None:
        """Register the path that leads to a module used by some call.

        This includes a module of which only parts were called.
        """
        known = self._modules.get(id(module))
        if known is None or known.ref() is not module:
            if not self._searched_modules.is_new(module, len(self._modules)):
                return
            tree = tree_of(module)
            if not any(part.nameless for part, _ in self._known_inside(tree)):
                return
            known = get_tracked(self._modules, module)  # a policy whose methods call its layers
            self._learn_module(known, module, tree)
        place = parse_path(way)
        if place.function:
            self._locals.set_name(place.path, known, place.function)
        else:
            self._paths.set_way(way, known)

    def _set_variable(self, name: str, tensor: Any) -> None:
        """Register the variable that holds a parameter that no module has.

        The shortest of several names is used.
        """
        known = self._parameters.get(id(tensor))
        if (
            known is not None
            and isinstance(known.owner, OptimizerParameter)
            and known.ref() is tensor
        ):
            known.owner.called = min(name, known.owner.called or name, key=len)

    def path_by(self, key: int, ref: weakref.ref[Any]) -> str | None:
        """Return a parameter's module and path, by its id and weak reference.

        It also works once the parameter is freed. Returns None if it is unknown.
        """
        self._owner_of(ref())  # registers the parameter
        known = self._parameters.get(key)
        return None if known is None or known.ref is not ref else f"{known.owner.name}{known.path}"

    def _module_of(self, parameter: Any, *, lookup: bool) -> ModulePath | None:
        member = self._member(parameter)
        if member is None:
            return None
        owner, first = member
        path = self._parameters[id(parameter)].module_at(lookup=lookup)
        return ModulePath(owner, path, first)

    def _place_of_module(self, module: Any) -> ModulePath | None:
        """Return the place of a module in the tree with the best name."""
        trees = [*self._trees.values()]
        trees += [(one, one.tree) for one in self._modules.values() if one.tree is not None]
        places = (
            (known, tree.paths[id(module)])
            for known, tree in trees
            if id(module) in tree.paths and tree.module_of(id(module)) is module
        )
        best = max(
            places,
            key=lambda p: (p[0].named, p[0].called is not None, p[1].count(".")),
            default=None,
        )
        return None if best is None else ModulePath(best[0], f".{best[1]}" if best[1] else "")

    def _learn_module(self, known: TrackedObject, module: Any, tree: ModuleTree) -> None:
        """Register where a module lies, its known parts and its parameters."""
        self._learn_places(known, module, tree)
        known.tree = tree
        if known.learned is not tree:
            known.learned = tree
            for parameter in tree.parameters_once():
                self._register_parameter(known, tree, parameter)
        for alternatives in fsdp2_substitutes(module):  # the module has one of them at a time
            found = (self._parameters.get(id(alternative)) for alternative in alternatives)
            path = next((one.path for one in found if one is not None and one.owner is known), "")
            for alternative in alternatives if path else ():
                self._learn(
                    alternative, Parameter(alternative, _place(path[1:], alternative), known)
                )

    def _learn_tree(self, known: TrackedObject, module: Any) -> None:
        """Register where a module lies and which known parts it contains.

        Parameters are registered when they are needed.
        """
        tree = tree_of(module)
        if any(fsdp2_substitutes(module)):
            self._learn_module(known, module, tree)
        self._learn_places(known, module, tree)
        self._trees[id(module)] = known, tree
        if known.tree is not tree:
            known.tree = tree
            for key in _in_both(self._parameters, tree.places):
                self._register_parameter(known, tree, self._parameters[key].ref())

    def _register_parameter(self, known: TrackedObject, tree: ModuleTree, parameter: Any) -> None:
        """Register a parameter's place in a module tree, if it is there."""
        place = tree.places.get(id(parameter))
        if place is not None and parameter is not None and place.ref() is parameter:
            one = Parameter(parameter, place, known)
            one.tied = tree.tied.get(id(parameter), "")
            self._learn(parameter, one)

    def _known_inside(self, tree: ModuleTree) -> Iterator[tuple[TrackedObject, str]]:
        """Yield the tracked modules of a tree, each with its path."""
        for key in _in_both(self._modules, tree.paths):
            part, inner = self._modules[key], tree.module_of(key)
            if inner is not None and part.ref() is inner:
                yield part, tree.paths[key]

    def _learn_places(self, known: TrackedObject, module: Any, tree: ModuleTree) -> None:
        """Register a module's known parts, and the module that contains it.

        A program may call parts directly.
        """
        for part, path in self._known_inside(tree):
            if path:
                part.set_parent(known, path)
        name, first = next(tree.named_parameters(), ("", None))
        owner, place = self._member(first) or (None, "")
        outer = None if owner is None else owner.ref()
        if owner is not None and outer is not None and outer is not module:
            found = modules.path_of(module, outer, place[1:].removesuffix(f".{name}"))
            if found is not None:
                known.set_parent(owner, found)

    def _learn(self, parameter: Any, found: Parameter) -> None:
        if found.is_better_than(self._parameters.get(id(parameter))):
            self._parameters[id(parameter)] = found

    def track_optimizer(self, optimizer: Any, loop: int) -> None:
        """Track an optimizer and its parameters weakly, for one loop."""
        self._learn_optimizer(optimizer)
        shown = self._objects_by_loop[loop]
        if id(optimizer) not in shown.owners:
            shown.owners.add(id(optimizer))
            for group in modules.param_groups(optimizer):
                shown.parameters.update(map(id, modules.parameters_of_group(group)))

    def _learn_optimizer(self, optimizer: Any) -> None:
        if id(optimizer) in self._optimizers:
            return
        known = get_tracked(self._optimizers, optimizer)
        for group in modules.param_groups(optimizer):
            for index, parameter in enumerate(modules.parameters_of_group(group)):
                self._owner_of(parameter)
                in_group = Parameter(
                    parameter, _place("", parameter), OptimizerParameter(known, index)
                )
                self._learn(parameter, in_group)

    def state(self, mark: int, optimizer: Any) -> None:
        """Record an optimizer's state, unless it has not changed place.

        A state that is replaced in each step is recorded at most MAX_WALKS times.
        """
        footprint = state_footprint(optimizer)
        before, walks = self._states.get(id(optimizer), ((), 0))
        if before[:1] != footprint[:1] or (before != footprint and walks < MAX_WALKS):
            self._states[id(optimizer)] = footprint, walks + 1
            known = get_tracked(self._optimizers, optimizer)
            self._add(mark, state_of_optimizer(optimizer, self._named_member), known)
            self._add(mark, parameters_of_optimizer(optimizer, self._owner_of), known)

    def name(self, namespace: Mapping[str, Any]) -> None:
        """Register the notebook's names for modules and optimizers.

        No tensor is accessed. If an object has two names (`best = model`), the first one is used.
        """
        told: set[int] = set()
        for name, module in tensors.modules_in(namespace):
            known = get_tracked(self._modules, module)
            if self._paths.has_better(name, known):
                self._learn_tree(known, module)
            elif id(module) not in told:
                told.add(id(module))
                known.set_name(name)
                self._learn_tree(known, module)
        for name, optimizer in tensors.optimizers_in(namespace):
            self._learn_optimizer(optimizer)
            if id(optimizer) not in told:
                told.add(id(optimizer))
                get_tracked(self._optimizers, optimizer).set_name(name)

    def failed(self, error: BaseException) -> None:
        """Register names of modules in functions that an error has ended.

        No tensor is accessed.
        """
        frames.report_modules(frames.traceback_variables(error), self._learn_at_error)

    def _learn_at_error(self, way: str, module: Any) -> None:
        if id(module) not in self._modules:
            self._learn_module(get_tracked(self._modules, module), module, tree_of(module))
        self._set_path(way, module)

    def record_everything(
        self, mark: int, namespace: Mapping[str, Any], loop: int
    ) -> Iterator[None]:
        """Record all that the notebook names or that was tracked, in steps.

        It runs at a cell's start and end, in possibly many steps. The caller must make sure that no
        other thread uses tensors during a step. `name` must have been called before.

        Args:
            mark: The counter sample at the cell's start or end.
            namespace: The notebook's names.
            loop: The home thread's loop.
        """
        self._home = loop
        self._named = set(self._parameters)
        yield
        others, caches = OtherOptimizers(), CacheCollector()
        names = tensors.NameCallbacks(
            caches.also(others.add_candidate), self._member, self._set_variable, self._set_path
        )
        lasting = self._without_loop_variables(namespace)
        yield from self._add_in_steps(mark, tensors.in_namespace(lasting, names), None)
        legacy = self._caches.like_given(namespace)
        self.caches(mark, [*caches.pop(), *legacy])
        del legacy
        yield from self._add_in_steps(mark, others.pop_state(self._named_member), None)
        for optimizer, known in live_objects(self._optimizers):
            yield from self._add_in_steps(
                mark, state_of_optimizer(optimizer, self._named_member), known
            )
            found = parameters_of_optimizer(optimizer, self._owner_of)
            yield from self._add_in_steps(mark, found, known)
        for module, known in live_objects(self._modules):  # last: the most specific names
            if known.inside is not None and _is_covered_by(module, known.inside[0]):
                continue
            yield from self._add_in_steps(
                mark, iter(weights_and_buffers(module, known.tree)), known
            )
        self.gradients(mark, loop, {}, at_end=True)

    def _without_loop_variables(self, namespace: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave out names that led to several modules: their list names them."""
        shared = {n for n, _ in tensors.modules_in(namespace) if self._paths.is_shared(n)}
        return {n: v for n, v in namespace.items() if n not in shared} if shared else namespace

    def _add_in_steps(
        self, mark: int, seen: Iterator[tensors.ObservedStorage], owner: TrackedObject | None
    ) -> Iterator[None]:
        while part := list(islice(seen, STEP)):
            if self.rows.count < 2 * MAX_ROWS:  # those at the end have a limit of their own
                self._extend(mark, part, owner)
            yield

    def training_bytes(self, mark: int) -> dict[int, int]:
        """Return the bytes per card of training tensors seen since a sample.

        These are weights, buffers, gradients and optimizer state. If a module was called, only
        models in use count: another one may be a forgotten copy.
        """
        sizes: dict[int, dict[int, int]] = {}
        called = (self._modules[key] for key in self._walked if key in self._modules)
        used = {id(around) for one in called for around in one.with_all_around()}
        in_use: dict[int, bool] = {id(None): True}
        for seen, owner in self.rows.since(mark):
            if seen.category not in OF_TRAINING:
                continue
            if id(owner) not in in_use:
                in_use[id(owner)] = self._in_use(owner, used)
            if in_use[id(owner)]:
                sizes.setdefault(seen.device, {})[seen.addr] = seen.size
        return {device: sum(found.values()) for device, found in sizes.items()}

    def _in_use(self, owner: Any, used: Collection[int]) -> bool:
        """Return True if a module was called or contains one that was.

        Also returns True for all other owners, and if no module was called.
        """
        return not self._walked or id(owner) in used or not modules.is_module(owner.ref())

    def _add(
        self, mark: int, seen: Iterable[tensors.ObservedStorage], owner: TrackedObject | None = None
    ) -> None:
        if self._has_room():
            self._extend(mark, seen, owner)

    def _extend(
        self, mark: int, seen: Iterable[tensors.ObservedStorage], owner: TrackedObject | None
    ) -> None:
        self.rows.add(mark, seen if isinstance(seen, list) else list(seen), owner)

    def notes(self) -> Iterator[str]:
        """Yield sentences about what was left out."""
        if self.full:
            yield (
                f"More than {MAX_ROWS} tensors were seen; later ones are told apart by their "
                "births and lifetimes alone."
            )
        if self.unread is not None:
            yield (
                f"nbmem lost the names of what graphs have saved: {self.unread}. The cell itself "
                "is not affected."
            )
        if passed_over := self.time_budget.refused[_LAYERS]:
            yield (
                f"{passed_over} calls of layers were too quick to look at each at a small price: "
                "their weights have the names that the notebook gives them, or none."
            )
        if self.deep:
            yield (
                f"A graph of more than {DEEPEST} operations in a row was followed only so far: "
                "what is saved further back may be unnamed, and its holders are not told."
            )

    def backwards_unread(self) -> int:
        """Return the number of backward passes whose graphs were not read.

        They were too fast for the time budget.
        """
        return sum(n for kind, n in self.time_budget.refused.items() if isinstance(kind, tuple))

    def _has_room(self) -> bool:
        self.full = self.full or self.rows.count >= MAX_ROWS
        return not self.full

    # --- afterwards

    def live_modules(self) -> list[tuple[Any, str, ModuleTree]]:
        """List the tracked modules that live, with their names and trees.

        The names are what a user can type. At most MOST_DESCRIBED are listed, outermost ones first.
        """
        found = live_objects(self._modules)
        if len(found) > MOST_DESCRIBED:  # layers called one by one: prefer what contains them
            outer = [one for one in found if one[1].inside is None]
            found = [*outer, *(one for one in found if one[1].inside is not None)][:MOST_DESCRIBED]
        return [(module, known.typed, known.tree or tree_of(module)) for module, known in found]

    def live_optimizers(self) -> list[tuple[Any, str]]:
        """List the tracked optimizers that live, with names a user can type."""
        return [(optimizer, known.typed) for optimizer, known in live_objects(self._optimizers)]

    def live_objects(self) -> list[Any]:
        """List the tracked modules and optimizers that live."""
        both = *live_objects(self._modules), *live_objects(self._optimizers)
        return [thing for thing, _ in both]

    def name_of(self, key: int) -> str | None:
        """Return the name of a module or optimizer by its id, or None."""
        known = self._modules.get(key) or self._optimizers.get(key)
        return None if known is None else known.name


def _with_owner(
    seen: tensors.ObservedStorage, owner: TrackedObject | OptimizerParameter | None
) -> tensors.ObservedStorage:
    """Return an observed tensor with an owner.

    An existing owner is not replaced.
    """
    return seen if owner is None or seen.of is not None else seen._replace(of=owner)


def _in_both(one: Mapping[int, Any], other: Mapping[int, Any]) -> list[int]:
    """Return the common keys of two mappings, in time of the smaller one."""
    few, many = (one, other) if len(one) < len(other) else (other, one)
    return [key for key in few if key in many]


def _place(path: str, tensor: Any) -> TensorPlace:
    """Return the place of a tensor that no walk of a module has found."""
    return TensorPlace(path, weakref.ref(tensor))


def _is_covered_by(module: Any, outer: TrackedObject) -> bool:
    """Return True if recording an outer module covers this one."""
    return outer.ref() is not None and outer.tree is not None and id(module) in outer.tree.paths


def _named_after_all(gradients: list[tensors.ObservedStorage]) -> list[tensors.ObservedStorage]:
    """Rename gradients that share a storage after all their parameters.

    Other gradients are returned unchanged.
    """
    paths: dict[tuple[int, int], list[str]] = {}
    for seen in gradients:
        paths.setdefault(seen[:2], []).append(seen.name.rpartition(".grad")[0])
    return [
        seen
        if len(mine := paths[seen[:2]]) < 2
        else seen._replace(name=f"{common_path(mine)}.*.grad of {len(mine)} parameters")
        for seen in gradients
    ]
