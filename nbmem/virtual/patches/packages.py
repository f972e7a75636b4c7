"""Compiled parts of other packages, replaced by rules.

The rules replace them while a card is active.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.dispatch.host_code import by_rule, with_usage_errors
from nbmem.virtual.operators import table
from nbmem.virtual.packages import all_rules, unusable
from nbmem.virtual.patches.patcher import Patch, Patches
from nbmem.virtual.tensors.operator_call import tensors_in

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine

LATE = ("bitsandbytes",)
"""Packages that skip a module if they are imported without a card: it is imported later."""


class RulesModule(ModuleType):
    """A module of rules in place of a package's compiled module."""


class RulesFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import hook that replaces compiled modules by rules.

    It also replaces functions in Python modules.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._patches = Patches()
        self._compiled: dict[str, dict[str, Callable[..., Any]]] = {}
        self._replaced: dict[str, dict[str, tuple[str, Callable[[Any], Any]]]] = {}
        self._made: list[str] = []

    def begin(self) -> None:
        """Load the rules of all packages; note packages where that failed."""
        every, failed = all_rules()
        operators = {}
        for who, rules in every:
            for name, host_code in rules.operators.items():
                operators[name] = by_rule(who, name, host_code)
            for module, functions in rules.modules.items():
                self._compiled.setdefault(module, {}).update(
                    {
                        name: with_usage_errors(who, f"{module}.{name}", function)
                        for name, function in functions.items()
                    }
                )
            for module, names in rules.replaced.items():
                self._replaced.setdefault(module, {}).update(
                    {name: (who, make) for name, make in names.items()}
                )
        table.set_foreign_operators(operators.values())
        for text in failed:
            self._machine.current.note(text)
        for name in (*self._compiled, *self._replaced):
            if name in sys.modules:
                self._put_in(sys.modules[name])
        sys.meta_path.insert(0, self)

    def import_skipped_modules(self) -> None:
        """Import modules that a package left out without an active card."""
        for name in self._replaced:
            package = name.partition(".")[0]
            if package in LATE and package in sys.modules and name not in sys.modules:
                with suppress(ModuleNotFoundError):  # its release has no such part
                    importlib.import_module(name)

    def end(self) -> None:
        """Restore replaced functions and remove the replacing modules."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._patches.undo()
        for name in self._made:
            if isinstance(sys.modules.get(name), RulesModule):
                del sys.modules[name]
        self._made.clear()
        table.set_foreign_operators(())

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module that rules replace, in whole or in part.

        A compiled module is replaced by one of rules. A Python module is loaded, then functions in
        it are replaced. None for any other module.
        """
        if fullname in self._compiled:
            return importlib.machinery.ModuleSpec(fullname, self, origin="nbmem")
        if fullname not in self._replaced:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._patch_after_import(spec)
                return spec
        return None

    def _patch_after_import(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        original_exec = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original_exec(module)
            self._put_in(module)

        loader.exec_module = exec_module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Create the module that replaces a compiled one."""
        self._made.append(spec.name)
        return RulesModule(
            spec.name, "Stands in for a compiled module while a virtual GPU is active."
        )

    def exec_module(self, module: ModuleType) -> None:
        """Fill the replacing module with its functions."""
        vars(module).update(self._functions(module, self._compiled[module.__name__]))

    def _put_in(self, module: ModuleType) -> None:
        name = module.__name__
        values = dict(self._functions(module, self._compiled.get(name, {})))
        for attribute, (who, make) in self._replaced.get(name, {}).items():
            if hasattr(module, attribute):
                try:
                    values[attribute] = make(getattr(module, attribute))
                except Exception as err:  # noqa: BLE001 - another library's code may raise anything
                    self._machine.current.note(unusable(who, err))
        self._patches.apply([Patch(module, *value) for value in values.items()])

    def _functions(
        self, module: ModuleType, functions: Mapping[str, Callable[..., Any]]
    ) -> dict[str, Callable[..., Any]]:
        return {
            name: _for_virtual_tensors(
                f"{module.__name__}.{name}", function, getattr(module, name, None)
            )
            for name, function in functions.items()
        }


def _for_virtual_tensors(name: str, host_code: Callable[..., Any], real: Any) -> Callable[..., Any]:
    """Return a function that runs rules for tensors on a card.

    All other calls go to the module itself.
    """

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
