"""Programs that can be estimated: cells, scripts, functions, objects."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest_path
from nbmem.estimates.programs import assignments, environment
from nbmem.estimates.programs import variable_binding as binding
from nbmem.estimates.programs.serialization import PickledNames, pack

if TYPE_CHECKING:
    from nbmem.estimates.programs.token_shapes import TokenShapes
    from nbmem.estimates.programs.variable_binding import Binding
    from nbmem.virtual.virtual_worlds import VirtualWorld

CELL = "<cell>"


class EndedError(Exception):
    """An error for sys.exit() with an error, or for a call of input()."""


def refuse_input(prompt: object = "", /) -> str:
    """Replace input() in the process of an estimate.

    Raises:
        EndedError: Always.
    """
    raise EndedError(
        f"input({prompt!r}) has nobody to ask in an estimate: write the answer into the program"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that can be run repeatedly, each time in a new namespace.

    Attributes:
        title: Its name in an answer.
        source: Python source; for a function the call of it.
        file: The file name in its code objects: a script's path, or CELL.
        names: The names in its namespace; None for a script, which starts with none.
        binding: Its variable, or None.
        arguments: sys.argv of a script.
        world: The world whose rank 0 it runs as; None for a program of one process.
        shapes: Other lengths of its sequences; None to leave them.
    """

    title: str
    source: str
    file: str
    names: PickledNames | None = None
    binding: Binding | None = None
    arguments: tuple[str, ...] = ()
    world: VirtualWorld | None = None
    shapes: TokenShapes | None = None

    def prepare(self) -> ModuleType:
        """Create a new `__main__` with copies of the names on the active card."""
        environment.restore_state()
        module = ModuleType("__main__")
        module.__dict__["__builtins__"] = sys.modules["builtins"]
        sys.modules["__main__"] = module
        if self.names is not None:
            self.names.open(vars(module))
        else:
            module.__file__ = self.file
            module.__loader__ = SourceFileLoader("__main__", self.file)
            sys.argv = [self.file, *self.arguments]
            folder = str(Path(self.file).resolve().parent)
            if sys.path[:1] != [folder]:
                sys.path.insert(0, folder)
        return module

    def run(self, module: ModuleType, value: int | None) -> None:
        """Run the program with a value of its variable.

        `sys.exit(0)` ends it, too, without an error.
        """
        bound = self.binding
        if bound is not None and value is not None:
            self._put(module, bound, value)
        code = binding.compile_with_value(self.source, self.file, bound, value)
        shaped = contextlib.nullcontext() if self.shapes is None else self.shapes.applied()
        try:
            with shaped:
                exec(code, vars(module))  # noqa: S102 - the user's program
        except SystemExit as err:
            if err.code:
                raise EndedError(f"it ended itself with sys.exit({err.code!r})") from None

    def _put(self, module: ModuleType, bound: Binding, value: int) -> None:
        """Set the variable where the source does not write it."""
        if bound.argument_index is not None:
            option, given, _ = self.arguments[bound.argument_index].rpartition("=")
            sys.argv[1 + bound.argument_index] = f"{option}{given}{value}"
        elif bound.line is None:
            binding.put(vars(module), bound.name, value)

    def line_of(self, error: BaseException) -> int | None:
        """Return the innermost line of the program in a traceback, or None."""
        line, step = None, error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == self.file:
                line = step.tb_lineno
            step = step.tb_next
        return line if self.file != CALL else None


CALL = "<call>"


def cell(
    source: str, namespace: Mapping[str, Any], *, title: str = "cell", vary: str | None = None
) -> Program:
    """Create a program from a notebook's cell, with copies of its names.

    Raises:
        UsageError: It is no plain Python, or its variable cannot be varied.
    """
    try:
        compile(source, CELL, "exec")
    except SyntaxError as err:
        also = " A top-level await cannot be estimated." if "await" in source else ""
        raise UsageError(
            f"The cell cannot be read as Python: {err.msg} (line {err.lineno}).{also}"
        ) from None
    names = pack(namespace, assignments.names_of(source))
    own = assignments.bound(source)  # what the cell makes anew needs no note on its copy
    names = dataclasses.replace(names, notes=tuple(n for n in names.notes if n[0] not in own))
    program = Program(title=title, source=source, file=CELL, names=names)
    return program if vary is None else bind_variable(program, vary, namespace)


def script(path: str, arguments: tuple[str, ...] = (), *, vary: str | None = None) -> Program:
    """Create a program from a script, as `python path` runs it.

    Raises:
        UsageError: It cannot be read, or its variable cannot be varied.
    """
    file = Path(path).absolute()
    try:
        with io.open_code(str(file)) as opened:
            source = opened.read().decode()
        compile(source, str(file), "exec")
    except FileNotFoundError:
        raise UsageError(f"There is no script {path}. {suggest_path(path)}") from None
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"The script {path} cannot be read ({err}).") from None
    except SyntaxError as err:
        raise UsageError(f"{path} is not valid Python: {err.msg} (line {err.lineno}).") from None
    program = Program(title=file.name, source=source, file=str(file), arguments=arguments)
    return program if vary is None else bind_variable(program, vary)


def bind_variable(
    program: Program, name: str, namespace: Mapping[str, Any] | None = None
) -> Program:
    """Return a cell or script with one of its variables bound.

    A cell's variable is searched for in its notebook's names, too.

    Raises:
        UsageError: It cannot be varied.
    """
    if program.names is None:
        bound = binding.in_script(name, program.source, program.arguments)
    else:
        bound = binding.in_cell(name, program.source, namespace or {}, program.names.names)
    return dataclasses.replace(program, binding=bound)


def call(function: Callable[..., Any], *, start: int | None = None) -> Program:
    """Create a program that calls a function.

    The function gets the variable's value if one is varied, else nothing.

    Raises:
        UsageError: It cannot be copied into the process of the estimate.
    """
    plain = getattr(function, "__wrapped__", function)
    home = getattr(plain, "__module__", None) or "__main__"
    given = {**getattr(plain, "__globals__", {}), "_nbmem_called": function}
    names = pack(given, ["_nbmem_called"], home)
    if names.left_out and names.left_out[0][0] == "_nbmem_called":
        raise UsageError(
            f"The function cannot be copied into the process of the estimate: it is "
            f"{names.left_out[0][1]}. Define it in the notebook or in a module, and let it make "
            "what it needs."
        )
    varied = start is not None
    return Program(
        title=getattr(plain, "__name__", "function"),
        source=f"_nbmem_called({'_nbmem_value' if varied else ''})",
        file=CALL,
        names=names,
        binding=binding.Binding("_nbmem_value", start) if start is not None else None,
    )


def objects(named: Mapping[str, Any], title: str) -> Program:
    """Create a program of copied objects without code; omit None values.

    Raises:
        UsageError: One of them cannot be copied.
    """
    given = {name: value for name, value in named.items() if value is not None}
    names = pack({**_globals_of(given.values()), **given}, given)
    if names.left_out:
        raise UsageError(f"{title} cannot be copied: it holds {names.left_out[0][1]}.")
    return Program(title=title, source="", file=CALL, names=names)


def _globals_of(values: Iterable[Any]) -> Mapping[str, Any]:
    """Return the globals of the first model class from the notebook.

    Classes of models that were written in a notebook use its globals.
    """
    for value in values:
        for part in value.modules() if hasattr(value, "modules") else ():
            forward: Any = getattr(type(part), "forward", None)
            if type(part).__module__ == "__main__" and hasattr(forward, "__globals__"):
                found: Mapping[str, Any] = forward.__globals__
                return found
    return {}
