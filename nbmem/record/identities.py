"""Which storage was what, as seen at the marks: collected while the cell runs, placed later."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.categories import Category
from nbmem.core.session import Identities, Marks
from nbmem.probes import tensors
from nbmem.probes.saved import Module, saved_tensors, why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_ROWS = 300_000
"""Beyond this many, births and lifetimes decide alone (a note says so)."""
_IN_GROUP = ".param_groups"


class Known:
    """A module or an optimizer, not held, under the best name that is known for it by now."""

    __slots__ = ("name", "ref")

    def __init__(self, thing: Any) -> None:
        self.ref = weakref.ref(thing)
        self.name = type(thing).__name__


class Footprint:
    """Where a module's first and last parameters lay when it was walked, without a new walk."""

    __slots__ = ("_ends",)

    def __init__(self, module: Any) -> None:
        parameters = list(module.parameters())
        ends = (*parameters[:1], *parameters[-1:])
        self._ends = [(weakref.ref(p), p.data_ptr()) for p in ends]

    def holds(self) -> bool:
        """Whether they are still there."""
        found = ((ref(), addr) for ref, addr in self._ends)
        return all(p is not None and p.data_ptr() == addr for p, addr in found)


class IdentityLog:
    """Sees modules, optimizers and tensors, and holds none of them.

    Attributes:
        full: Whether sightings were left out.
        owned: Which rows are walks of a module or an optimizer, as ranges.
        last_gradients: The range of the last gradients.
        unread: Why graphs are not read any more; None while they are.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, tensors.Seen, Known | None]] = []
        self._modules: dict[int, Known] = {}
        self._optimizers: dict[int, Known] = {}
        self._parameters: dict[int, tuple[weakref.ref[Any], Known, str]] = {}
        self._walked: dict[int, Footprint] = {}
        self._states: dict[int, tuple[int, ...]] = {}
        self._forwards: set[tuple[Any, ...]] = set()
        self.full = False
        self.owned: list[tuple[int, int]] = []
        self.last_gradients = (0, 0)
        self.unread: str | None = None

    # --- while the cell runs

    def module(self, mark: int, module: Any) -> None:
        """See a module's weights and buffers, unless its weights are where they were."""
        walked = self._walked.get(id(module))
        if walked is None or not walked.holds():
            known = _known(self._modules, module)
            self._learn_module(known, module)
            self._walked[id(module)] = Footprint(module)
            self._add(mark, tensors.of_module(module), known)

    def inputs(self, mark: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """See what a module was given."""
        self._add(mark, tensors.inputs_of_call(args, kwargs))

    def gradients(self, mark: int) -> None:
        """See the gradients of every parameter met so far: once a backward, so it must be quick."""
        if not self._room():
            return
        first = len(self._rows)
        for ref, owner, name in self._parameters.values():
            parameter = ref()
            gradient = None if parameter is None else parameter.grad
            if gradient is not None:
                seen = tensors.see(gradient, Category.GRADIENTS, name, form=False)
                if seen is not None:
                    self._rows.append((mark, seen, owner))
        self.last_gradients = (first, len(self._rows))

    def saved(
        self, mark: int, outputs: Iterable[Any], forward: tuple[Any, ...] | None = None
    ) -> None:
        """See what a graph has saved, unless a forward of the same kind was seen before.

        Args:
            mark: The backward's beginning, or the recording's end.
            outputs: Tensors with the graph behind them, or edges of it.
            forward: What is the same for forwards that allocate alike: their names are carried over
                when the recording is read (ledger/repeats.py). None reads the graph anyway.
        """
        if forward in self._forwards or self.unread is not None or not self._room():
            return
        if forward is not None:
            self._forwards.add(forward)
        self.unread = why_unreadable()
        if self.unread is not None:
            return
        try:
            found = list(saved_tensors(outputs, self._module_of))
        except Exception as err:  # noqa: BLE001 - a graph of a kind that nobody has met yet
            self.unread = repr(err)
        else:
            self._rows.extend((mark, seen, owner) for seen, owner in found)

    def _module_of(self, parameter: Any) -> Module | None:
        ref, known, name = self._parameters.get(id(parameter), (None, None, ""))
        if ref is None or ref() is not parameter or name.startswith(_IN_GROUP):
            return None
        return Module(known, name.removesuffix(".grad").rpartition(".")[0])

    def _learn_module(self, known: Known, module: Any) -> None:
        for name, parameter in module.named_parameters():
            self._parameters[id(parameter)] = weakref.ref(parameter), known, f".{name}.grad"

    def meet(self, optimizer: Any) -> None:
        """Remember an optimizer and its parameters (weakly)."""
        if id(optimizer) in self._optimizers:
            return
        known = _known(self._optimizers, optimizer)
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                entry = self._parameters.get(id(parameter))
                if entry is None or entry[0]() is not parameter:
                    name = f"{_IN_GROUP}[...][{index}].grad"
                    self._parameters[id(parameter)] = weakref.ref(parameter), known, name

    def state(self, mark: int, optimizer: Any) -> None:
        """See an optimizer's state, unless it is where it was."""
        footprint = _state_footprint(optimizer)
        if self._states.get(id(optimizer)) != footprint:
            self._states[id(optimizer)] = footprint
            known = _known(self._optimizers, optimizer)
            self._add(mark, tensors.of_optimizer(optimizer), known)
            self._add(mark, tensors.parameters_of_optimizer(optimizer), known)

    def everything(self, mark: int, namespace: Mapping[str, Any]) -> None:
        """See all that the notebook names, and all that was met: at a cell's start and end."""
        for name, module in tensors.modules_in(namespace):
            known = _known(self._modules, module)
            known.name = name
            self._learn_module(known, module)
        for name, optimizer in tensors.optimizers_in(namespace):
            self.meet(optimizer)
            _known(self._optimizers, optimizer).name = name
        self._add(mark, tensors.in_namespace(namespace))
        for optimizer, known in _living(self._optimizers):
            self._add(mark, tensors.of_optimizer(optimizer), known)
            self._add(mark, tensors.parameters_of_optimizer(optimizer), known)
        for module, known in _living(self._modules):  # last: a module's name says most
            self._add(mark, tensors.of_module(module), known)
        self.gradients(mark)

    def training_bytes(self, mark: int) -> dict[int, int]:
        """Bytes by card of the weights, buffers, gradients and optimizer state seen at a mark."""
        sizes: dict[int, dict[int, int]] = {}
        for at, seen, _ in reversed(self._rows):
            if at < mark:
                break
            if seen.category <= Category.OPTIMIZER_STATE:
                sizes.setdefault(seen.device, {})[seen.addr] = seen.size
        return {device: sum(found.values()) for device, found in sizes.items()}

    def _add(self, mark: int, seen: Iterable[tensors.Seen], owner: Known | None = None) -> None:
        if self._room():
            first = len(self._rows)
            self._rows.extend((mark, s, owner) for s in seen)
            if owner is not None:
                self.owned.append((first, len(self._rows)))

    def rows(self, first: int, last: int) -> list[tuple[int, tensors.Seen, Known | None]]:
        """What was seen, in order: the mark, the storage, whose it is."""
        return self._rows[first:last]

    def _room(self) -> bool:
        self.full = self.full or len(self._rows) >= MAX_ROWS
        return not self.full

    # --- afterwards

    def living_modules(self) -> list[tuple[Any, str]]:
        """Modules that were met and still live, with their names."""
        return [(module, known.name) for module, known in _living(self._modules)]

    def living_optimizers(self) -> list[tuple[Any, str]]:
        """Optimizers that were met and still live, with their names."""
        return [(optimizer, known.name) for optimizer, known in _living(self._optimizers)]

    def place(self, device: int, marks: Marks, names: dict[str, int]) -> Identities:
        """One card's identities; `names` collects their texts, text to index."""
        rows = [row for row in self._rows if row[1].device == device]
        at = np.array([mark for mark, _, _ in rows], np.int64)
        texts = [
            s.name if owner is None else f"{s.before}{owner.name}{s.name}" for _, s, owner in rows
        ]
        return Identities(
            position=marks.position[at] if rows else at,
            addr=np.array([s.addr for _, s, _ in rows], np.int64),
            size=np.array([s.size for _, s, _ in rows], np.int64),
            category=np.array([s.category for _, s, _ in rows], np.uint8),
            name=np.array([names.setdefault(text, len(names)) for text in texts], np.int64),
        )


def _known(known: dict[int, Known], thing: Any) -> Known:
    entry = known.get(id(thing))
    if entry is None or entry.ref() is not thing:
        entry = known[id(thing)] = Known(thing)
    return entry


def _living(known: dict[int, Known]) -> list[tuple[Any, Known]]:
    return [(thing, entry) for entry in known.values() if (thing := entry.ref()) is not None]


def _state_footprint(optimizer: Any) -> tuple[int, ...]:
    """Changes when an optimizer's state grows or is replaced."""
    states = list(optimizer.state.values())
    last = states[-1] if states else {}
    values = last.values() if isinstance(last, dict) else ()
    return (len(states), *(id(value) for value in values))
