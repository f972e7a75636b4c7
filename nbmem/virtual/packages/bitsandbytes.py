"""bitsandbytes: Python host code runs, calls to its C library do nothing.

Its functions take addresses and allocate nothing on the card (csrc/pythonInterface.cpp), except for
managed memory, which has the state of paged optimizers: that is the host's here.
https://github.com/bitsandbytes-foundation/bitsandbytes/tree/0.50.2
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from nbmem.virtual import current_machine
from nbmem.virtual.kernel_rules import KernelRules

CONTEXT = 1
"""A handle of cuBLAS, which no code reads."""


class PassingLibrary:
    """The C library's stand-in while a card is active; then the library."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._functions: dict[str, CFunction] = {}
        self._managed: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not name.startswith(("c", "get_")):
            return getattr(self._library, name)  # Not a function of the card: compiled_with_cuda.
        if name not in self._functions:
            self._functions[name] = CFunction(self, name)
        return self._functions[name]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Return what a C function would: 0, a handle, or host memory.

        0 is no error. Without an active card the library itself is called.
        """
        if current_machine.machine() is None:
            return getattr(self._library, name)(*arguments)
        if name == "cget_managed_ptr":
            memory = ctypes.create_string_buffer(arguments[0].value)
            self._managed.append(memory)  # bitsandbytes never gives it back
            return ctypes.addressof(memory)
        return CONTEXT if name == "get_context" else 0


class CFunction:
    """A function of the C library; bitsandbytes sets its argument types."""

    def __init__(self, library: PassingLibrary, name: str) -> None:
        self._library = library
        self._name = name
        self.argtypes: Any = None
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Answer as the library would on the card."""
        return self._library.answer(self._name, arguments)


def passing(library: Any) -> PassingLibrary:
    """Wrap the module's `lib`, unless it is wrapped already."""
    return library if isinstance(library, PassingLibrary) else PassingLibrary(library)


_LIBRARY: dict[str, Callable[[Any], Any]] = {"lib": passing}
RULES = KernelRules(
    replaced={
        "bitsandbytes.cextension": _LIBRARY,
        "bitsandbytes.functional": _LIBRARY,
        "bitsandbytes.backends.cuda.ops": _LIBRARY,
    }
)
