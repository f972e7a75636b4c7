"""Other packages' compiled parts: their rules stand in for them while a card is active."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.dispatch.host_code import by_rule, explained
from nbmem.virtual.operators import table
from nbmem.virtual.packages import all_rules, unusable
from nbmem.virtual.patches.patcher import Patch, Patches
from nbmem.virtual.tensors.operator_call import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nbmem.virtual.hardware.machine import Machine

LATE = ("bitsandbytes",)
"""Packages that leave a module out where they are imported without a card: it is imported late."""


class StandIn(ModuleType):
    """A compiled module whose host code is its package's rules."""


class RulesFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds compiled modules as stand-ins, and what is replaced in modules of Python."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._patches = Patches()
        self._compiled: dict[str, dict[str, Callable[..., Any]]] = {}
        self._replaced: dict[str, dict[str, tuple[str, Callable[[Any], Any]]]] = {}
        self._made: list[str] = []

    def begin(self) -> None:
        """Take the rules of all packages; say of which one none can be taken."""
        every, failed = all_rules()
        operators = {}
        for who, rules in every:
            for name, host_code in rules.operators.items():
                operators[name] = by_rule(who, name, host_code)
            for module, functions in rules.modules.items():
                self._compiled.setdefault(module, {}).update(
                    {
                        name: explained(who, f"{module}.{name}", function)
                        for name, function in functions.items()
                    }
                )
            for module, names in rules.replaced.items():
                self._replaced.setdefault(module, {}).update(
                    {name: (who, make) for name, make in names.items()}
                )
        table.learn(operators.values())
        for text in failed:
            self._machine.current.note(text)
        for name in (*self._compiled, *self._replaced):
            if name in sys.modules:
                self._put_in(sys.modules[name])
        sys.meta_path.insert(0, self)

    def late(self) -> None:
        """Import what a package left out because no card was active then."""
        for name in self._replaced:
            package = name.partition(".")[0]
            if package in LATE and package in sys.modules and name not in sys.modules:
                with suppress(ModuleNotFoundError):  # its release has no such part
                    importlib.import_module(name)

    def end(self) -> None:
        """Put back what was there, and take the stand-ins away."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._patches.undo()
        for name in self._made:
            if isinstance(sys.modules.get(name), StandIn):
                del sys.modules[name]
        self._made.clear()
        table.learn(())

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """A stand-in for a compiled module; the module itself, and then what is replaced in it."""
        if fullname in self._compiled:
            return importlib.machinery.ModuleSpec(fullname, self, origin="nbmem")
        if fullname not in self._replaced:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._when_it_is_there(spec)
                return spec
        return None

    def _when_it_is_there(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        true_exec = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            true_exec(module)
            self._put_in(module)

        loader.exec_module = exec_module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Make the stand-in."""
        self._made.append(spec.name)
        return StandIn(spec.name, "Stands in for a compiled module while a virtual GPU is active.")

    def exec_module(self, module: ModuleType) -> None:
        """Give the stand-in its functions."""
        vars(module).update(self._functions(module, self._compiled[module.__name__]))

    def _put_in(self, module: ModuleType) -> None:
        name = module.__name__
        values = dict(self._functions(module, self._compiled.get(name, {})))
        for attribute, (who, make) in self._replaced.get(name, {}).items():
            if hasattr(module, attribute):
                try:
                    values[attribute] = make(getattr(module, attribute))
                except Exception as err:  # noqa: BLE001 - whatever a stranger's code does
                    self._machine.current.note(unusable(who, err))
        self._patches.apply([Patch(module, *value) for value in values.items()])

    def _functions(
        self, module: ModuleType, functions: Mapping[str, Callable[..., Any]]
    ) -> dict[str, Callable[..., Any]]:
        return {
            name: _on_a_card(f"{module.__name__}.{name}", function, getattr(module, name, None))
            for name, function in functions.items()
        }


def _on_a_card(name: str, host_code: Callable[..., Any], real: Any) -> Callable[..., Any]:
    """Take calls with tensors of a card; the module itself takes all others."""

    @functools.wraps(host_code)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(is_virtual(tensor) for tensor in tensors_in(args, kwargs)):
            return host_code(*args, **kwargs)
        if real is not None:
            return real(*args, **kwargs)
        raise RuntimeError(
            f"{name} takes tensors on a GPU, and it was given none on a virtual one: the compiled "
            "module itself is not installed here."
        )

    return call
