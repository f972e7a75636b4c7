"""Track modules, optimizers and parameters by weak reference."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nbmem.capture.interpreter.object_members import entries_of
from nbmem.capture.tensors import modules, tensors

if TYPE_CHECKING:
    from nbmem.capture.tensors.module_tree import ModuleTree, TensorPlace

SAMPLED = 8
"""Number of parameters whose state is compared to detect a replaced optimizer state."""


class TrackedObject:
    """A module or optimizer, weakly referenced, with its best known name.

    Attributes:
        ref: Weak reference to the module or optimizer.
        called: The notebook's name for the object; None if it has none.
        way: The path from the notebook's names to the object (`learn.model`); None without one.
        local: The object's name in a running function (the `student` of `main()`). None without
            one, or if several objects had that name.
        shared: A name in a running function that several living objects had: a loop variable, or
            one that got a new model before the old one was gone. None without one.
        inside: The module that contains the object, and the path there; None if none is known.
        tree: The module tree at the last walk; None for an optimizer.
        learned: The tree whose parameters are all registered; None before a call.
    """

    __slots__ = ("_kind", "called", "inside", "learned", "local", "ref", "shared", "tree", "way")

    def __init__(self, obj: Any) -> None:
        self.ref: weakref.ref[Any] = weakref.ref(obj)
        self._kind = type(obj).__name__
        self.called: str | None = None
        self.way: str | None = None
        self.local: str | None = None
        self.shared: str | None = None
        self.inside: tuple[TrackedObject, str] | None = None
        self.tree: ModuleTree | None = None
        self.learned: ModuleTree | None = None

    @property
    def name(self) -> str:
        """Best name known so far.

        If necessary, this is a local name in a running function, or the class's name.
        """
        if self.called is None and self.inside is not None:
            outer, path = self.inside
            return f"{outer.name}.{path}"
        return self.called or self.way or self.local or self.shared or self._kind

    @property
    def typed(self) -> str:
        """Expression for it in the notebook, else its class's name."""
        if self.called is None and self.inside is not None:
            outer, path = self.inside
            return f"{outer.typed}.{path}"
        return self.called or self.way or self._kind

    @property
    def named(self) -> bool:
        """True if the notebook names it or a module that contains it."""
        return self.called is not None or (self.inside is not None and self.inside[0].named)

    @property
    def nameless(self) -> bool:
        """True if it lives and has no name but its class's."""
        names = (self.called, self.way, self.local)
        return self.ref() is not None and not any(names) and self.inside is None

    def set_name(self, name: str) -> None:
        """Set the notebook's name for it."""
        self.called = name

    def set_parent(self, outer: TrackedObject, path: str) -> None:
        """Register the module that contains this one, and the path there.

        A program may call such a part by itself. A containing module that the notebook names is
        preferred.
        """
        known = self.inside[0] if self.inside is not None else None
        if outer.is_within(self):
            return  # a module that contains itself
        if known is None or known.ref() is None or outer.named >= known.named:
            self.inside = outer, path

    def is_within(self, other: TrackedObject) -> bool:
        """Return True if another object is this one or contains it."""
        return any(around is other for around in self.with_all_around())

    def with_all_around(self) -> Iterator[TrackedObject]:
        """Yield this object, then the modules that contain it, outwards."""
        one: TrackedObject | None = self
        while one is not None:
            yield one
            one = None if one.inside is None else one.inside[0]


class NotebookPaths:
    """Paths from the notebook's names to modules.

    A path that has led to several living modules is a loop variable: one that led to a single
    module is the better name (`layers[0]`, not `layer`).
    """

    def __init__(self) -> None:
        self._of: dict[str, TrackedObject] = {}
        self._shared: set[str] = set()

    def set_way(self, way: str, known: TrackedObject) -> None:
        """Register a path to a module; the best and shortest one is used."""
        first = self._of.setdefault(way, known)
        if first is not known:
            self._of[way] = known
            if first.ref() is not None:
                self._shared.add(way)
        if known.way is None or self._worth(way) < self._worth(known.way):
            known.way = way
        if known.called is not None and self.has_better(known.called, known):
            known.called = None

    def has_better(self, name: str, known: TrackedObject) -> bool:
        """Return whether a module has a path that is better than this name."""
        return name in self._shared and known.way is not None and known.way not in self._shared

    def is_shared(self, way: str) -> bool:
        """Return whether a path has led to several living modules."""
        return way in self._shared

    def _worth(self, way: str) -> tuple[bool, int]:
        return way in self._shared, len(way)


class LocalNames:
    """Names that running functions give to modules and optimizers.

    A name counts only while a single object has it. A loop variable that refers to many layers in
    turn names none of them. Two functions may give two objects the same name (`test(model)` gets an
    average): the outer function's object has the name. A path through a library's private
    attributes (`trainer._connector.model`) is used only if there is no other.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], TrackedObject | None] = {}
        self._has: dict[str, TrackedObject] = {}
        self._functions: dict[str, str] = {}  # path to the function that uses it

    def set_name(self, way: str, known: TrackedObject, where: str = "") -> None:
        """Register a name of an object in a running function.

        If several functions name an object, the outermost one's name is registered last and stays.

        Args:
            way: The path to the object (`agent.policy`).
            known: The object with that name.
            where: The function in which the object has the name.
        """
        first = self._of.setdefault((where, way), known)
        if first is None or (first is not known and first.ref() is not None):
            for one in (first, known):
                if one is not None and one.local in (way, None):
                    one.local, one.shared = None, way
            self._of[where, way] = None
            return
        self._of[where, way] = known  # the previous object, such as an earlier fold's net, is freed
        if self._has_better(known, way, where):
            return
        self._functions[way] = where
        other = self._has.get(way)
        if other is not None and other is not known and other.local == way:
            other.local, other.shared = None, way
        self._has[way] = known
        known.local = way

    def _has_better(self, known: TrackedObject, way: str, where: str) -> bool:
        """Return True if an object's present local name is the better one.

        A name with fewer private attributes is better. In one function a shorter one is.
        """
        before = known.local
        if before is None or self._has.get(before) is not known:
            return False
        one, other = _private(before), _private(way)
        if self._functions.get(before) == where and one == other:
            one, other = before.count("."), way.count(".")
        return one < other


def _private(way: str) -> int:
    """Count the private attributes in a path."""
    return way.count("._")


class SearchedModules:
    """Modules that were searched for parts that had been called.

    Each module is searched once for each number of tracked modules.
    """

    def __init__(self) -> None:
        self._looked: dict[int, int] = {}

    def is_new(self, module: Any, called: int) -> bool:
        """Return True if a module was not searched at this count of modules."""
        before = self._looked.get(id(module))
        self._looked[id(module)] = called
        return before != called


class OptimizerParameter:
    """A parameter of an optimizer that no known module has.

    Examples are an optimized image and a latent code.

    Attributes:
        called: The variable that holds the parameter; None while unknown.
    """

    __slots__ = ("_index", "_optimizer", "called")

    def __init__(self, optimizer: TrackedObject, index: int) -> None:
        self._optimizer, self._index = optimizer, index
        self.called: str | None = None

    @property
    def ref(self) -> weakref.ref[Any]:
        """Weak reference to the optimizer, which keeps the parameter alive."""
        return self._optimizer.ref

    @property
    def name(self) -> str:
        """Variable that holds the parameter, else its place in the optimizer."""
        return self.called or f"{self._optimizer.name}.param_groups[...][{self._index}]"

    @property
    def named(self) -> bool:
        """True if the notebook names the parameter or its optimizer."""
        return self.called is not None or self._optimizer.named


class Parameter:
    """A weakly referenced parameter with the best place known for it.

    Attributes:
        ref: Weak reference to the parameter.
        place: The first place where the parameter is registered.
        owner: The module that has the parameter, or its place in an optimizer.
        tied: The path in a module of the other kind, if an embedding and a head share the
            parameter.
        form: Shape and dtype, once the gradient has been read.
        gradient: The gradient as last read.
    """

    __slots__ = ("form", "gradient", "owner", "place", "ref", "tied")

    def __init__(
        self, parameter: Any, place: TensorPlace, owner: TrackedObject | OptimizerParameter
    ) -> None:
        self.ref: weakref.ref[Any] = weakref.ref(parameter)
        self.place = place
        self.owner = owner
        self.tied = ""
        self.form = ""
        self.gradient: tensors.ObservedStorage | None = None

    @property
    def path(self) -> str:
        """Path of the parameter below its owner's name, with a leading dot."""
        return f".{self.place.path}" if self.place.path else ""

    def module_at(self, *, lookup: bool) -> str:
        """Return the path of a module that uses the parameter.

        With `lookup`, a module that looks up rows in the parameter is preferred, else another one.
        """
        path = self.tied if self.tied and lookup != self.place.lookup else self.path
        return path.rsplit(".", 2 if self.place.listed else 1)[0]

    @property
    def in_group(self) -> bool:
        """True if the parameter is known from an optimizer alone."""
        return isinstance(self.owner, OptimizerParameter)

    def is_better_than(self, other: Parameter | None) -> bool:
        """Return True if this place is at least as good as another one.

        Any place is better than none, or than the place of a freed parameter.
        """
        if other is None or other.ref() is None:
            return True
        return self.worth >= other.worth

    @property
    def worth(self) -> tuple[bool, bool, bool, int]:
        """Sort key of the places known for one parameter; higher is better.

        These are preferred, in this order:

        - a module to an optimizer,
        - an owner that the notebook names,
        - an owner with a name of its own,
        - a longer path.
        """
        called = self.owner.called is not None
        return not self.in_group, self.owner.named, called, self.place.path.count(".")


class ThreadObjects:
    """Objects that one thread's own calls have used.

    Attributes:
        parameters: Ids of the parameters of the thread's modules and optimizers.
    """

    __slots__ = ("_owners", "parameters")

    def __init__(self) -> None:
        self._owners: set[int] = set()
        self.parameters: set[int] = set()

    def is_new(self, owner: Any) -> bool:
        """Add a module or optimizer; return whether its use is the first."""
        count = len(self._owners)
        self._owners.add(id(owner))
        return len(self._owners) > count


class Footprint:
    """Addresses of a module's first and last parameters at its last walk.

    They show without another walk whether the parameters have moved.
    """

    __slots__ = ("_ends",)

    def __init__(self, tree: ModuleTree) -> None:
        places = (*tree.parameters[:1], *tree.parameters[-1:])
        self._ends = [
            (weakref.ref(parameter), tree.ref_at(place.inner), tensors.address_of(parameter))
            for place in places
            if (parameter := place.ref()) is not None
        ]

    def holds(self) -> bool:
        """Return True if these parameters are still the module's and unmoved.

        Other parameters may have replaced them temporarily.
        """
        return all(_is_in(p(), inner(), place) for p, inner, place in self._ends)


def _is_in(parameter: Any, module: Any, place: tuple[int, int, int] | None) -> bool:
    if parameter is None or module is None:
        return False
    is_own = any(own is parameter for own in modules.own_parameters(module))
    return is_own and tensors.address_of(parameter) == place


def get_tracked(known: dict[int, TrackedObject], obj: Any) -> TrackedObject:
    """Return the entry of a module or optimizer, created if necessary."""
    entry = known.get(id(obj))
    if entry is None or entry.ref() is not obj:
        entry = known[id(obj)] = TrackedObject(obj)
    return entry


def live_objects(known: dict[int, TrackedObject]) -> list[tuple[Any, TrackedObject]]:
    """List the tracked objects that still live, each with its entry."""
    return [(obj, entry) for entry in known.values() if (obj := entry.ref()) is not None]


def state_footprint(optimizer: Any) -> tuple[int, ...]:
    """Return a fingerprint of an optimizer's state.

    It changes when the state grows or is replaced. The state of about SAMPLED parameters is read.
    """
    found = modules.all_states(optimizer)
    sampled = found[:: max(1, len(found) // SAMPLED)]
    states = [state for _, state in sampled if issubclass(type(state), dict)]
    return (len(found), *(id(kept) for state in states for _, kept in entries_of(state)))
