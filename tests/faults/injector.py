"""Make any function of nbmem fail on purpose, under any name.

    targets = functions("nbmem.views", "nbmem.report.tips")
    with Fault(targets[0], MemoryError) as fault:       # at its entry, at every call
        ...
    with Fault(targets[0], MemoryError, at="line", seed=3) as fault:   # once, at a random line
        ...
    fault.hits                                          # how often it was met; 0: never called

Modules import functions by their names, so replacing a module's attribute would reach few callers:
at "entry" the function's own code is exchanged, at "line" what watches its lines raises in its
frame. Python 3.12 can watch the lines of one function; before it, a trace function sees every call.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import Any, Literal, NamedTuple, Self

_NAME = "__fault_of_the_injector__"
_LINES = getattr(sys, "monitoring", None)
_TOOL = 4
"""A number of `sys.monitoring` that no known tool has taken."""


class Target(NamedTuple):
    """A function that can be made to fail."""

    name: str
    function: FunctionType

    def codes(self) -> tuple[CodeType, ...]:
        """Return the code objects of the function and of those inside it."""
        found = [self.function.__code__]
        for code in found:
            found += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        return tuple(found)


def functions(*packages: str, skip: Collection[str] = ()) -> list[Target]:
    """Return every function of some packages or modules, by name.

    Args:
        packages: Dotted names; their modules are imported. One that cannot be imported here, since
            it is made of a library that is not installed, is left out.
        skip: Dotted names of modules or functions to leave out, with all below them.
    """
    found: dict[str, Target] = {}
    for module in _modules(packages):
        for name, function in _written_in(module):
            dotted = f"{module.__name__}.{name}"
            if not any(dotted == one or dotted.startswith(f"{one}.") for one in skip):
                found.setdefault(dotted, Target(dotted, function))
    return sorted(found.values())


def _modules(packages: Collection[str]) -> Iterator[ModuleType]:
    for package in packages:
        top = importlib.import_module(package)
        yield top
        for info in pkgutil.walk_packages(getattr(top, "__path__", ()), f"{package}."):
            try:
                yield importlib.import_module(info.name)
            except ModuleNotFoundError as err:
                if (err.name or "").partition(".")[0] == "nbmem":
                    raise


def _written_in(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Yield functions whose code stands in the module's file."""
    for name, value in vars(module).items():
        members = [(name, value)]
        if inspect.isclass(value) and value.__module__ == module.__name__:
            members = [(f"{name}.{member}", one) for member, one in vars(value).items()]
        for dotted, one in members:
            for function in _functions_of(one):
                if function.__code__.co_filename == module.__file__:
                    yield dotted, function


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """Return a function, or the ones below its decorator."""
    if isinstance(value, FunctionType):
        inner = inspect.unwrap(value)
        if isinstance(inner, FunctionType):
            yield inner
    elif isinstance(value, staticmethod | classmethod):
        yield from _functions_of(value.__func__)
    elif isinstance(value, property):
        for one in (value.fget, value.fset):
            yield from _functions_of(one)
    elif isinstance(value, functools.cached_property):
        yield from _functions_of(value.func)
    elif hasattr(value, "cache_info") and not isinstance(value, type):  # functools has the type
        yield from _functions_of(inspect.unwrap(value))


class Fault:
    """A fault in one function, armed by `with` or `arm`.

    Args:
        target: The function.
        error: Makes what is raised: an exception's class, or a function.
        at: "entry": at every call, before its first line (a generator's at its first item). "line":
            once, at a line that `seed` chooses among the function's own and those inside it; before
            Python 3.12 only in this thread and in those that start while it is armed.
        seed: Chooses the line.
        once: At the entry, fail at the first call only.

    Attributes:
        hits: How often the fault was met.
        line: The chosen line; None at the entry.
    """

    def __init__(
        self,
        target: Target,
        error: Callable[[], BaseException],
        *,
        at: Literal["entry", "line"] = "entry",
        seed: int = 0,
        once: bool = False,
    ) -> None:
        self.target = target
        self.hits = 0
        self._error = error
        self._once = once
        self._codes = frozenset(target.codes())
        self.line = _some_line(target, seed) if at == "line" else None
        self._code = target.function.__code__
        self._traced: Any = None

    def arm(self) -> Self:
        """Make the function fail from here on."""
        if self.line is None:
            self.target.function.__globals__[_NAME] = self._raised
            self.target.function.__code__ = _raising(self._code)
        elif _LINES:
            _LINES.use_tool_id(_TOOL, _NAME)
            _LINES.register_callback(_TOOL, _LINES.events.LINE, self._line_begins)
            for code in self._codes:
                _LINES.set_local_events(_TOOL, code, _LINES.events.LINE)
        else:
            self._traced = sys.gettrace()
            threading.settrace(self._trace)
            sys.settrace(self._trace)
        return self

    def disarm(self) -> None:
        """Restore the function."""
        if self.line is None:
            self.target.function.__code__ = self._code
            self.target.function.__globals__.pop(_NAME, None)
        elif _LINES:
            if _LINES.get_tool(_TOOL) != _NAME:
                return
            for code in self._codes:
                _LINES.set_local_events(_TOOL, code, _LINES.events.NO_EVENTS)
            _LINES.register_callback(_TOOL, _LINES.events.LINE, None)
            _LINES.free_tool_id(_TOOL)
        else:
            threading.settrace(None)  # type: ignore[arg-type]
            sys.settrace(self._traced)

    def __enter__(self) -> Self:
        return self.arm()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.disarm()

    def _raised(self) -> BaseException:
        self.hits += 1
        if self._once and self.line is None:
            self.disarm()
        return self._error()

    def _line_begins(self, _code: CodeType, line: int) -> None:
        if line == self.line and not self.hits:
            raise self._raised()

    def _trace(self, frame: Any, event: str, _argument: Any) -> Any:
        if frame.f_code not in self._codes or self.hits:
            return None
        if event == "line" and frame.f_lineno == self.line:
            sys.settrace(self._traced)  # the rest of the program need not be slow
            raise self._raised()
        return self._trace


def _some_line(target: Target, seed: int) -> int:
    lines = {line for code in target.codes() for *_, line in code.co_lines() if line is not None}
    first = target.function.__code__.co_firstlineno
    inside = sorted(lines - {first}) or [first]
    return random.Random(f"{target.name} {seed}").choice(inside)


def _raising(code: CodeType) -> CodeType:
    """Make code that raises, with as many closure cells as the original."""
    names = code.co_freevars
    generator = bool(code.co_flags & inspect.CO_GENERATOR)
    source = ["def made():"]
    source += [f"    {name} = None" for name in names]
    source += ["    def function(*args, **kwargs):"]
    source += [f"        if False: {name}" for name in names]
    source += [f"        raise {_NAME}()"]
    source += ["        yield"] * generator
    source += ["    return function"]
    space: dict[str, Any] = {}
    exec("\n".join(source), space)
    made: CodeType = space["made"]().__code__
    return made.replace(co_name=code.co_name)
