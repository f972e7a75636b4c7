"""Modules, optimizers and parameters that were met in a loop; none of them is held."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from nbmem.capture.interpreter.object_members import entries_of
from nbmem.capture.tensors import modules, tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.capture.tensors.module_tree import ModuleTree, TensorPlace

ASKED = 8
"""Parameters whose state tells whether an optimizer's is another."""


class Known:
    """A module or an optimizer, not held, under the best name that is known for it by now.

    Attributes:
        ref: The module or optimizer.
        called: The notebook's name for it; None if it has none.
        way: How the notebook's objects lead to it (`learn.model`); None where none does.
        local: What a running function calls it (the `student` of `main()`); None where none does,
            or where others were called so, too.
        inside: The module in which it was found, and its path there; None if it was in none.
        tree: What it was made of when it was looked at last; None of an optimizer.
        learned: The tree all of whose parameters are known by now; None before a call.
    """

    __slots__ = ("_kind", "called", "inside", "learned", "local", "ref", "tree", "way")

    def __init__(self, thing: Any) -> None:
        self.ref: weakref.ref[Any] = weakref.ref(thing)
        self._kind = type(thing).__name__
        self.called: str | None = None
        self.way: str | None = None
        self.local: str | None = None
        self.inside: tuple[Known, str] | None = None
        self.tree: ModuleTree | None = None
        self.learned: ModuleTree | None = None

    @property
    def name(self) -> str:
        """The best name that is known by now, if need be a running function's or its class's."""
        if self.called is None and self.inside is not None:
            outer, path = self.inside
            return f"{outer.name}.{path}"
        return self.called or self.way or self.local or self._kind

    @property
    def typed(self) -> str:
        """What one may type in the notebook, else its class's name."""
        if self.called is None and self.inside is not None:
            outer, path = self.inside
            return f"{outer.typed}.{path}"
        return self.called or self.way or self._kind

    @property
    def named(self) -> bool:
        """Whether the notebook has named it, or what it is a part of."""
        return self.called is not None or (self.inside is not None and self.inside[0].named)

    @property
    def nameless(self) -> bool:
        """Whether nothing has named it by now but its class."""
        names = (self.called, self.way, self.local)
        return self.ref() is not None and not any(names) and self.inside is None

    def call(self, name: str) -> None:
        """Learn the notebook's name for it."""
        self.called = name

    def lies_in(self, outer: Known, path: str) -> None:
        """Learn that it is a part of another module, which a program may call by itself."""
        known = self.inside[0] if self.inside is not None else None
        if outer.lies_within(self):
            return  # a module that is in itself
        if known is None or known.ref() is None or outer.named >= known.named:
            self.inside = outer, path

    def lies_within(self, other: Known) -> bool:
        """Whether another is this one, or around it."""
        return any(around is other for around in self.with_all_around())

    def with_all_around(self) -> Iterator[Known]:
        """Yield this one, then the one that it lies in, and so on outwards."""
        one: Known | None = self
        while one is not None:
            yield one
            one = None if one.inside is None else one.inside[0]


class Locals:
    """What running functions call modules and optimizers, as far as each name is one thing's alone.

    A loop's variable is many layers' in turn: then it is the name of none. Two functions may call
    two things alike (`test(model)` is given an average): the outer one's has the name. A way
    through what a library keeps for itself (`trainer._connector.model`) is taken where there is no
    other.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Known | None] = {}
        self._has: dict[str, Known] = {}
        self._told: dict[str, str] = {}  # way to the function that called it so

    def call(self, way: str, known: Known, where: str = "") -> None:
        """Learn a name; of several functions' the outermost one's is told last and stays.

        Args:
            way: What leads to it (`agent.policy`).
            known: What is called so.
            where: The function that calls it so.
        """
        first = self._of.setdefault((where, way), known)
        if first is None or (first is not known and first.ref() is not None):
            for one in (first, known):
                if one is not None and one.local == way:
                    one.local = None
            self._of[where, way] = None
            return
        self._of[where, way] = known  # the net of the fold before is gone
        if self._has_better(known, way, where):
            return
        self._told[way] = where
        other = self._has.get(way)
        if other is not None and other is not known and other.local == way:
            other.local = None
        self._has[way] = known
        known.local = way

    def _has_better(self, known: Known, way: str, where: str) -> bool:
        """Whether what a thing is called already says more: less private, shorter in a function."""
        before = known.local
        if before is None or self._has.get(before) is not known:
            return False
        one, other = _private(before), _private(way)
        if self._told.get(before) == where and one == other:
            one, other = before.count("."), way.count(".")
        return one < other


def _private(way: str) -> int:
    """Parts of a way that are nobody's but its object's own."""
    return way.count("._")


class Around:
    """Modules that were looked into for others that had been called, each once for so many."""

    def __init__(self) -> None:
        self._looked: dict[int, int] = {}

    def is_new(self, module: Any, called: int) -> bool:
        """Whether a module was not looked into since so many modules are known."""
        before = self._looked.get(id(module))
        self._looked[id(module)] = called
        return before != called


class InGroup:
    """A parameter of an optimizer's that no module is known to have: a picture, a latent code.

    Attributes:
        called: The variable that holds it; None while none is known.
    """

    __slots__ = ("_index", "_optimizer", "called")

    def __init__(self, optimizer: Known, index: int) -> None:
        self._optimizer, self._index = optimizer, index
        self.called: str | None = None

    @property
    def ref(self) -> weakref.ref[Any]:
        """The optimizer: while it lives, so does the parameter."""
        return self._optimizer.ref

    @property
    def name(self) -> str:
        """The variable, else its place in the optimizer."""
        return self.called or f"{self._optimizer.name}.param_groups[...][{self._index}]"

    @property
    def named(self) -> bool:
        """Whether the notebook has named it or its optimizer."""
        return self.called is not None or self._optimizer.named


class Parameter:
    """A parameter, not held, as the best that is known of it by now says.

    Attributes:
        ref: The parameter.
        place: Where it is registered, the first of these places.
        owner: The module that has it, or its place in an optimizer.
        tied: The path in a module of the other kind, where an embedding shares it with a head.
        form: Shape and dtype, once its gradient has been seen.
        gradient: Its gradient as it was seen last.
    """

    __slots__ = ("form", "gradient", "owner", "place", "ref", "tied")

    def __init__(self, parameter: Any, place: TensorPlace, owner: Known | InGroup) -> None:
        self.ref: weakref.ref[Any] = weakref.ref(parameter)
        self.place = place
        self.owner = owner
        self.tied = ""
        self.form = ""
        self.gradient: tensors.Seen | None = None

    @property
    def path(self) -> str:
        """What stands behind its owner's name."""
        return f".{self.place.path}" if self.place.path else ""

    def module_at(self, *, lookup: bool) -> str:
        """Path of the module that looks rows up in the parameter, or of another that uses it."""
        path = self.tied if self.tied and lookup != self.place.lookup else self.path
        return path.rsplit(".", 2 if self.place.listed else 1)[0]

    @property
    def in_group(self) -> bool:
        """Whether only an optimizer has shown it."""
        return isinstance(self.owner, InGroup)

    def says_more_than(self, other: Parameter | None) -> bool:
        """Whether this is the better way to know it: in a module, by a name, from outside."""
        if other is None or other.ref() is None:
            return True
        return self.worth >= other.worth

    @property
    def worth(self) -> tuple[bool, bool, bool, int]:
        """What tells the better of two ways to know it."""
        called = self.owner.called is not None
        return not self.in_group, self.owner.named, called, self.place.path.count(".")


class Shown:
    """What one thread's own calls have shown.

    Attributes:
        owners: Ids of its modules and optimizers.
        parameters: Ids of their parameters.
    """

    __slots__ = ("owners", "parameters")

    def __init__(self) -> None:
        self.owners: set[int] = set()
        self.parameters: set[int] = set()


class Footprint:
    """Where a module's first and last parameters lay when it was walked, without a new walk."""

    __slots__ = ("_ends",)

    def __init__(self, tree: ModuleTree) -> None:
        places = (*tree.parameters[:1], *tree.parameters[-1:])
        self._ends = [
            (weakref.ref(parameter), tree.ref_at(place.inner), tensors.address_of(parameter))
            for place in places
            if (parameter := place.ref()) is not None
        ]

    def holds(self) -> bool:
        """Whether they are still there, and still the module's: others may be lent to it."""
        return all(_lies_in(p(), inner(), place) for p, inner, place in self._ends)


def _lies_in(parameter: Any, module: Any, place: tuple[int, int, int] | None) -> bool:
    if parameter is None or module is None:
        return False
    mine = any(own is parameter for own in modules.own_parameters(module))
    return mine and tensors.address_of(parameter) == place


def known_in(known: dict[int, Known], thing: Any) -> Known:
    """What is known of a module or an optimizer, by its id; begun where nothing is."""
    entry = known.get(id(thing))
    if entry is None or entry.ref() is not thing:
        entry = known[id(thing)] = Known(thing)
    return entry


def living(known: dict[int, Known]) -> list[tuple[Any, Known]]:
    """Objects that still live, each with what is known of it."""
    return [(thing, entry) for entry in known.values() if (thing := entry.ref()) is not None]


def state_footprint(optimizer: Any) -> tuple[int, ...]:
    """Changes when an optimizer's state grows or is replaced; a few of its parameters are asked."""
    found = modules.all_states(optimizer)
    asked = found[:: max(1, len(found) // ASKED)]
    states = [state for _, state in asked if issubclass(type(state), dict)]
    return (len(found), *(id(kept) for state in states for _, kept in entries_of(state)))
