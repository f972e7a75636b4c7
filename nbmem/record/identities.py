"""Which storage was what, as seen at the marks: collected while the cell runs, placed later."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.categories import Category
from nbmem.core.session import Identities, Marks
from nbmem.probes import tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_ROWS = 300_000
"""Beyond this many, births and lifetimes decide alone (a note says so)."""


class IdentityLog:
    """Sees modules, optimizers and tensors, and holds none of them."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, tensors.Seen]] = []
        self._modules: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._walked: dict[int, tuple[int, ...]] = {}
        self.full = False

    # --- while the cell runs

    def module(self, mark: int, module: Any) -> None:
        """See a module's weights and buffers, unless they are where they were."""
        print_now = _footprint(module)
        if self._walked.get(id(module)) != print_now:
            self._walked[id(module)] = print_now
            self._add(mark, tensors.of_module(module, self._name(self._modules, module)))

    def inputs(self, mark: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """See what a module was given."""
        self._add(mark, tensors.inputs_of_call(args, kwargs))

    def gradients(self, mark: int) -> None:
        """See the gradients of every module and optimizer met so far."""
        for optimizer, _name in _living(self._optimizers):
            self._add(mark, tensors.gradients_of_optimizer(optimizer))
        for module, name in _living(self._modules):
            self._add(mark, tensors.gradients_of_module(module, name))

    def meet(self, optimizer: Any) -> None:
        """Remember an optimizer (weakly)."""
        self._name(self._optimizers, optimizer)

    def state(self, mark: int, optimizer: Any) -> None:
        """See an optimizer's state, unless it is where it was."""
        name = self._name(self._optimizers, optimizer)
        print_now = _state_footprint(optimizer)
        if self._walked.get(id(optimizer)) != print_now:
            self._walked[id(optimizer)] = print_now
            self._add(mark, tensors.of_optimizer(optimizer, name))
            self._add(mark, tensors.parameters_of_optimizer(optimizer, name))

    def everything(self, mark: int, namespace: Mapping[str, Any]) -> None:
        """See all that the notebook names, and all that was met: at a cell's start and end."""
        for name, module in tensors.modules_in(namespace):
            self._modules[id(module)] = (weakref.ref(module), name)
        for name, optimizer in tensors.optimizers_in(namespace):
            self._optimizers[id(optimizer)] = (weakref.ref(optimizer), name)
        self._add(mark, tensors.in_namespace(namespace))
        for optimizer, name in _living(self._optimizers):
            self._add(mark, tensors.of_optimizer(optimizer, name))
            self._add(mark, tensors.parameters_of_optimizer(optimizer, name))
        for module, name in _living(self._modules):  # last: a module's name says most
            self._add(mark, tensors.of_module(module, name))
        self.gradients(mark)

    def _add(self, mark: int, seen: Iterable[tensors.Seen]) -> None:
        self.full = self.full or len(self._rows) >= MAX_ROWS
        if not self.full:
            self._rows.extend((mark, s) for s in seen)

    @staticmethod
    def _name(known: dict[int, tuple[weakref.ref[Any], str]], thing: Any) -> str:
        """What a module or optimizer is called; its class's name until the notebook names it."""
        entry = known.get(id(thing))
        if entry is None or entry[0]() is not thing:
            entry = known[id(thing)] = (weakref.ref(thing), type(thing).__name__)
        return entry[1]

    # --- afterwards

    def place(self, device: int, marks: Marks, names: dict[str, int]) -> Identities:
        """One card's identities; `names` collects their texts, text to index."""
        rows = [(mark, s) for mark, s in self._rows if s.device == device]
        at = np.array([mark for mark, _ in rows], np.int64)
        return Identities(
            position=marks.position[at] if rows else at,
            addr=np.array([s.addr for _, s in rows], np.int64),
            size=np.array([s.size for _, s in rows], np.int64),
            category=np.array([s.category for _, s in rows], np.uint8),
            name=np.array([names.setdefault(s.name, len(names)) for _, s in rows], np.int64),
        )

    def first_inputs(self) -> list[tuple[int, tensors.Seen]]:
        """Every input seen, with its mark."""
        return [(mark, s) for mark, s in self._rows if s.category == Category.INPUTS]


def _living(known: dict[int, tuple[weakref.ref[Any], str]]) -> list[tuple[Any, str]]:
    return [(thing, name) for ref, name in known.values() if (thing := ref()) is not None]


def _footprint(module: Any) -> tuple[int, ...]:
    """Changes when a module's parameters move: its number of them and where the ends lie."""
    parameters = list(module.parameters())
    ends = [p.data_ptr() for p in (*parameters[:1], *parameters[-1:])]
    return (len(parameters), *ends)


def _state_footprint(optimizer: Any) -> tuple[int, ...]:
    """Changes when an optimizer's state grows or is replaced."""
    states = list(optimizer.state.values())
    last = states[-1] if states else {}
    values = last.values() if isinstance(last, dict) else ()
    return (len(states), *(id(value) for value in values))
