"""Track which module or optimizer has each parameter, under its best name."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nbmem.capture.distributed.parallel_wrappers import fsdp2_substitutes
from nbmem.capture.graphs.node_modules import ModulePath
from nbmem.capture.record.tracked_objects import (
    LocalNames,
    NotebookPaths,
    OptimizerParameter,
    Parameter,
    SearchedModules,
    TrackedObject,
    get_tracked,
    live_objects,
)
from nbmem.capture.tensors import frames, modules, tensors
from nbmem.capture.tensors.module_tree import ModuleTree, TensorPlace, tree_of
from nbmem.core.session.variable_paths import parse_path

MAX_DESCRIBED = 500
"""Modules whose class, size and switches are described."""


class ParameterOwners:
    """A recording's modules and optimizers, and the place of each parameter.

    None of them is held. A parameter is registered when a call uses its module, or when something
    asks for its owner.

    Attributes:
        modules: Tracked modules, by id.
        optimizers: Tracked optimizers, by id.
        parameters: Registered parameters, by id.
        trees: Tracked modules that the notebook names, with the tree of each, by id.
    """

    def __init__(self) -> None:
        self.modules: dict[int, TrackedObject] = {}
        self.optimizers: dict[int, TrackedObject] = {}
        self.parameters: dict[int, Parameter] = {}
        self.trees: dict[int, tuple[TrackedObject, ModuleTree]] = {}
        self._containers: dict[int, TrackedObject] = {}  # those that contain other modules
        self._locals = LocalNames()
        self._paths = NotebookPaths()
        self._searched_modules = SearchedModules()

    def module(self, module: Any) -> TrackedObject:
        """Return the entry of a module, created if necessary."""
        return get_tracked(self.modules, module)

    def optimizer(self, optimizer: Any) -> TrackedObject:
        """Return the entry of an optimizer, created if necessary."""
        return get_tracked(self.optimizers, optimizer)

    def owner_of(self, parameter: Any) -> tuple[TrackedObject | OptimizerParameter, str] | None:
        """Return the owner of a parameter, and the path there; None if unknown.

        The owner is a module, or else the parameter's place in an optimizer.
        """
        known = self.parameters.get(id(parameter))
        if known is None or known.ref() is not parameter:
            for known_as, tree in self.trees.values():
                self._register_parameter(known_as, tree, parameter)
            known = self.parameters.get(id(parameter))
        if known is None or known.ref() is not parameter:
            return None
        return known.owner, known.path

    def member(self, parameter: Any) -> tuple[TrackedObject, str] | None:
        """Return the module that has a parameter, and the path there, or None."""
        found = self.owner_of(parameter)
        return (
            None
            if found is None or isinstance(found[0], OptimizerParameter)
            else (found[0], found[1])
        )

    def named_member(self, parameter: Any) -> tuple[TrackedObject | OptimizerParameter, str] | None:
        """Return the module or variable that has a parameter, and the path.

        Returns None if only an optimizer has the parameter.
        """
        found = self.owner_of(parameter)
        place = None if found is None else found[0]
        return None if isinstance(place, OptimizerParameter) and place.called is None else found

    def path_by(self, key: int, ref: weakref.ref[Any]) -> str | None:
        """Return a parameter's module and path, by its id and weak reference.

        It also works once the parameter is freed. Returns None if it is unknown.
        """
        self.owner_of(ref())  # registers the parameter
        known = self.parameters.get(key)
        return None if known is None or known.ref is not ref else f"{known.owner.name}{known.path}"

    def module_of(self, parameter: Any, *, lookup: bool) -> ModulePath | None:
        """Return the module that uses a parameter; None if it is unknown.

        With `lookup`, a module that looks up rows in it is preferred, else another one.
        """
        member = self.member(parameter)
        if member is None:
            return None
        owner, first = member
        path = self.parameters[id(parameter)].module_at(lookup=lookup)
        return ModulePath(owner, path, first)

    def place_of_module(self, module: Any) -> ModulePath | None:
        """Return the place of a module in the tree with the best name."""
        trees = [*self.trees.values()]
        own = self.modules.get(id(module))
        around = *self._containers.values(), *(() if own is None else (own,))
        trees += [(one, one.tree) for one in around if one.tree is not None]
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

    # --- names

    def callbacks(
        self, candidate: Callable[[str, Any], None], variable: Callable[[Any], None] | None = None
    ) -> tensors.NameCallbacks:
        """Return what a walk over variables calls, so that names come here.

        Args:
            candidate: Called with path and object for each that has attributes; must not retain it.
            variable: Called with each tensor that has a graph.
        """
        return tensors.NameCallbacks(
            candidate, self.member, self.set_variable, self.set_path, variable
        )

    def add_names(self, namespace: Mapping[str, Any]) -> None:
        """Register the notebook's names for modules and optimizers.

        No tensor is accessed. If an object has two names (`best = model`), the first one is used.
        """
        reported: set[int] = set()
        for name, module in tensors.modules_in(namespace):
            known = self.module(module)
            if self._paths.has_better(name, known):
                self._learn_tree(known, module)
            elif id(module) not in reported:
                reported.add(id(module))
                known.set_name(name)
                self._learn_tree(known, module)
        for name, optimizer in tensors.optimizers_in(namespace):
            self.learn_optimizer(optimizer)
            if id(optimizer) not in reported:
                reported.add(id(optimizer))
                self.optimizer(optimizer).set_name(name)

    def without_loop_variables(self, namespace: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave out names that led to several modules: their list names them."""
        shared = {n for n, _ in tensors.modules_in(namespace) if self._paths.is_shared(n)}
        return {n: v for n, v in namespace.items() if n not in shared} if shared else namespace

    def set_path(self, way: str, module: Any) -> None:
        """Register the path that leads to a module used by some call.

        This includes a module of which only parts were called.
        """
        known = self.modules.get(id(module))
        if known is None or known.ref() is not module:
            if not self._searched_modules.is_new(module, len(self.modules)):
                return
            tree = tree_of(module)
            if not any(part.nameless for part, _ in self._known_inside(tree)):
                return
            known = self.module(module)  # a policy whose methods call its layers
            self.learn_module(known, module, tree)
        place = parse_path(way)
        if place.function:
            self._locals.set_name(place.path, known, place.function)
        else:
            self._paths.set_way(way, known)

    def set_variable(self, name: str, tensor: Any) -> None:
        """Register the variable that holds a parameter that no module has.

        The shortest of several names is used.
        """
        known = self.parameters.get(id(tensor))
        if (
            known is not None
            and isinstance(known.owner, OptimizerParameter)
            and known.ref() is tensor
        ):
            known.owner.called = min(name, known.owner.called or name, key=len)

    def add_local_optimizers(self, variables: Mapping[str, Any], function: str) -> None:
        """Register the names that a running function gives to optimizers."""
        for name, optimizer in tensors.optimizers_in(variables):
            self._locals.set_name(name, self.optimizer(optimizer), function)

    def add_names_at_error(self, error: BaseException) -> None:
        """Register names of modules in functions that an error has ended.

        No tensor is accessed.
        """
        frames.report_modules(frames.traceback_variables(error), self._learn_at_error)

    def _learn_at_error(self, way: str, module: Any) -> None:
        if id(module) not in self.modules:
            self.learn_module(self.module(module), module, tree_of(module))
        self.set_path(way, module)

    # --- learning

    def learn_module(self, known: TrackedObject, module: Any, tree: ModuleTree) -> None:
        """Register where a module lies, its known parts and its parameters."""
        self._learn_places(known, module, tree)
        self._set_tree(known, tree)
        if known.learned is not tree:
            known.learned = tree
            for parameter in tree.parameters_once():
                self._register_parameter(known, tree, parameter)
        for alternatives in fsdp2_substitutes(module):  # the module has one of them at a time
            found = (self.parameters.get(id(alternative)) for alternative in alternatives)
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
            self.learn_module(known, module, tree)
        self._learn_places(known, module, tree)
        self.trees[id(module)] = known, tree
        if known.tree is not tree:
            self._set_tree(known, tree)
            for key in _in_both(self.parameters, tree.places):
                self._register_parameter(known, tree, self.parameters[key].ref())

    def _set_tree(self, known: TrackedObject, tree: ModuleTree) -> None:
        known.tree = tree
        if len(tree) > 1:
            self._containers[id(known)] = known

    def _register_parameter(self, known: TrackedObject, tree: ModuleTree, parameter: Any) -> None:
        """Register a parameter's place in a module tree, if it is there."""
        place = tree.places.get(id(parameter))
        if place is not None and parameter is not None and place.ref() is parameter:
            one = Parameter(parameter, place, known)
            one.tied = tree.tied.get(id(parameter), "")
            self._learn(parameter, one)

    def _known_inside(self, tree: ModuleTree) -> Iterator[tuple[TrackedObject, str]]:
        """Yield the tracked modules of a tree, each with its path."""
        for key in _in_both(self.modules, tree.paths):
            part, inner = self.modules[key], tree.module_of(key)
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
        owner, place = self.member(first) or (None, "")
        outer = None if owner is None else owner.ref()
        if owner is not None and outer is not None and outer is not module:
            found = modules.path_of(module, outer, place[1:].removesuffix(f".{name}"))
            if found is not None:
                known.set_parent(owner, found)

    def _learn(self, parameter: Any, found: Parameter) -> None:
        if found.is_better_than(self.parameters.get(id(parameter))):
            self.parameters[id(parameter)] = found

    def learn_optimizer(self, optimizer: Any) -> None:
        """Register an optimizer and its parameters, once."""
        if id(optimizer) in self.optimizers:
            return
        known = self.optimizer(optimizer)
        for group in modules.param_groups(optimizer):
            for index, parameter in enumerate(modules.parameters_of_group(group)):
                self.owner_of(parameter)
                in_group = Parameter(
                    parameter, _place("", parameter), OptimizerParameter(known, index)
                )
                self._learn(parameter, in_group)

    # --- afterwards

    def live_modules(self) -> list[tuple[Any, str, ModuleTree]]:
        """List the tracked modules that live, with their names and trees.

        The names are what a user can type. At most MAX_DESCRIBED are listed, outermost ones first.
        """
        found = live_objects(self.modules)
        if len(found) > MAX_DESCRIBED:  # layers called one by one: prefer what contains them
            outer = [one for one in found if one[1].inside is None]
            found = [*outer, *(one for one in found if one[1].inside is not None)][:MAX_DESCRIBED]
        return [(module, known.typed, known.tree or tree_of(module)) for module, known in found]

    def live_optimizers(self) -> list[tuple[Any, str]]:
        """List the tracked optimizers that live, with names a user can type."""
        return [(optimizer, known.typed) for optimizer, known in live_objects(self.optimizers)]

    def live_objects(self) -> list[Any]:
        """List the tracked modules and optimizers that live.

        A part that outlives its module is listed, too.
        """
        both = *live_objects(self.modules), *live_objects(self.optimizers)
        dead = [
            one.tree for one in self.modules.values() if one.tree is not None and one.ref() is None
        ]
        return [*(obj for obj, _ in both), *(part for tree in dead for part in tree.modules())]

    def name_of(self, key: int) -> str | None:
        """Return the name of a module or optimizer by its id, or None."""
        known = self.modules.get(key) or self.optimizers.get(key)
        return None if known is None else known.name


def _in_both(one: Mapping[int, Any], other: Mapping[int, Any]) -> list[int]:
    """Return the common keys of two mappings, in time of the smaller one."""
    few, many = (one, other) if len(one) < len(other) else (other, one)
    return [key for key in few if key in many]


def _place(path: str, tensor: Any) -> TensorPlace:
    """Return the place of a tensor that no walk of a module has found."""
    return TensorPlace(path, weakref.ref(tensor))
