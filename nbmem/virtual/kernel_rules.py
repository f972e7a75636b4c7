"""Memory rules that a package registers for its own CUDA kernels.

With them its programs run on a virtual card.

A package names a `KernelRules` object in its metadata:

    [project.entry-points."nbmem.virtual"]
    mylib = "mylib.memory:RULES"

Host code is written in Python as the kernel's C++ has it: what it allocates with torch, in its
order; what the function still holds when it returns is freed then, results are what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    HostCode = Callable[..., Any]

GROUP = "nbmem.virtual"
"""The group of entry points."""


@dataclass(frozen=True, slots=True)
class KernelRules:
    """The kernels of one package whose host code cannot run without a card.

    Attributes:
        operators: Host code by an operator's name, "library::operator" (with ".overload" where it
            is not the default one). It is called with the operator's arguments, tensors of the card
            among them.
        modules: Host code of compiled modules by their names, function by function:
            {"mylib_cuda": {"forward": forward}}. While a card is active they replace the module,
            which need not be installed. A call without a tensor of a card goes to the module
            itself.
        replaced: Replacements of names in Python modules, made from the original:
            {"mylib.native": {"lib": make}}. Each is set when the module is imported, and the
            original is restored when the card is deactivated.
    """

    operators: Mapping[str, HostCode] = field(default_factory=dict)
    modules: Mapping[str, Mapping[str, HostCode]] = field(default_factory=dict)
    replaced: Mapping[str, Mapping[str, Callable[[Any], Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the names and the functions.

        Raises:
            TypeError: With the name that is wrong.
        """
        for name, function in self.operators.items():
            if "::" not in name:
                raise TypeError(f'operators are named "library::operator", not {name!r}')
            _check(name, function)
        for part in (self.modules, self.replaced):
            for module, functions in part.items():
                for name, function in functions.items():
                    _check(f"{module}.{name}", function)


def _check(name: str, function: object) -> None:
    if not callable(function):
        raise TypeError(f"{name} is {function!r}, which cannot be called")
