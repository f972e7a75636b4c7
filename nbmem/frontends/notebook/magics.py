"""Register the magics `%memtrace`, `%%memtrace` and `%nbmem`.

Unloading restores what they replaced.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.core.runtime.interrupts import hold_signals
from nbmem.core.suggestions import suggest
from nbmem.frontends.notebook.commands import dispatch
from nbmem.frontends.notebook.commands.help import memtrace_help
from nbmem.frontends.notebook.display import show_bundle, text_bundle
from nbmem.frontends.notebook.error_boundary import (
    error_boundary,
    notify,
    release_with_retry,
    shell_entry,
)
from nbmem.frontends.notebook.options import (
    CellOptions,
    asks_for_help,
    parse_cell_line,
    parse_statement_line,
    statement_asks_for_help,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbmem.api.tracing import Trace
    from nbmem.frontends.notebook.commands.base import Notebook
    from nbmem.frontends.notebook.tracer import MemoryPeakExceededError, Tracer

_KINDS = ("line", "cell")
_TITLE_LENGTH = 40
_UNKNOWN = re.compile(r"(?:Line magic function|Cell magic) `(%+)(\w+)` not found")
_MAGICS = ("memtrace", "nbmem")
_LIKENESS = 0.7
"""Above that of `%memit` and `%memtrace` (0.62): memory_profiler has a magic of that name."""


class Magics:
    """The magics of nbmem in one shell."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._manager: Any = notebook.shell.magics_manager
        self._before: dict[tuple[str, str], Any] = {}

    def install(self) -> None:
        """Register the magics, remembering those that they replace."""
        self._register(_memtrace(self._notebook), "line_cell", "memtrace")
        self._register(_nbmem(self._notebook), "line_cell", "nbmem")

    def remove(self) -> None:
        """Restore the magics that were registered before."""
        for (place, name), before in self._before.items():
            if place in _KINDS:
                table = self._manager.magics[place]
                table.pop(name, None)
                if before is not None:
                    table[name] = before
            elif before is not None:
                setattr(self._manager.user_magics, name, before)
            elif hasattr(self._manager.user_magics, name):
                delattr(self._manager.user_magics, name)
        self._before.clear()

    def _register(self, function: Callable[..., Any], kind: str, name: str) -> None:
        for place in _KINDS:
            self._before[place, name] = self._manager.magics[place].get(name)
        self._before["user", name] = getattr(self._manager.user_magics, name, None)
        self._manager.register_function(function, kind, name)


def _memtrace(notebook: Notebook) -> Callable[..., Any]:
    def memtrace(
        line: str, cell: str | None = None, local_ns: Mapping[str, object] | None = None
    ) -> Any:
        __tracebackhide__ = True
        if _asks_for_help(line, cell):
            return _help()
        try:
            if cell is None:
                options, source = parse_statement_line(line)
                title = source if len(source) <= _TITLE_LENGTH else f"{source[:_TITLE_LENGTH]}..."
            else:
                options, source = parse_cell_line(line), cell
                title = options.name or notebook.hooks.title()
        except UsageError as err:
            notify(str(err) if cell is None else f"{err} This cell runs untraced.")
            return None if cell is None else _run(notebook, cell, local_ns)
        return _trace(notebook, options, title, partial(_run, notebook, source, local_ns))

    memtrace.__doc__ = memtrace_help()
    memtrace.needs_local_scope = True  # type: ignore[attr-defined]
    return memtrace


@shell_entry("see whether help is asked for", otherwise=lambda *_: False)
def _asks_for_help(line: str, cell: str | None) -> bool:
    return statement_asks_for_help(line) if cell is None else asks_for_help(line)


@shell_entry("show its help")
def _help() -> None:
    show_bundle(text_bundle(memtrace_help()))


def _nbmem(notebook: Notebook) -> Callable[..., None]:
    @shell_entry("run this line", in_cell=True)
    def nbmem(line: str, cell: str | None = None) -> None:
        with error_boundary(f"run %nbmem {line}".rstrip(), in_cell=True):
            dispatch(notebook, line, cell)

    nbmem.__doc__ = "Show and steer nbmem's memory reports; `%nbmem help` lists the subcommands."
    return nbmem


def _trace(notebook: Notebook, options: CellOptions, title: str, run: Callable[[], Any]) -> Any:
    """Run a function traced, within a cell that is running already."""
    __tracebackhide__ = True
    tracer = notebook.tracer
    inside = tracer.running is not None
    with hold_signals() as held:
        trace = tracer.begin(options, title)
    if held.came:
        if trace is not None:
            tracer.release_trace(trace)
        raise KeyboardInterrupt
    if trace is None:
        with _block(title) if inside else nullcontext():
            return run()
    error: BaseException | None = None
    try:
        value = run()
        release_with_retry("name the statement's value", partial(_hand_on, value))
    except BaseException as err:
        error = err
        raise
    finally:
        exceeded = _end(tracer, trace, options, error)
        del error
        release_with_retry("end the trace", partial(tracer.release_trace, trace))
    if exceeded is not None:
        raise exceeded
    if trace.interrupted:  # Ctrl-C came while nbmem finished, but was meant for the cell
        raise KeyboardInterrupt
    return value


def _hand_on(value: object) -> None:
    from nbmem.capture.record.recording import add_cell_value

    add_cell_value(value)


@shell_entry("finish this statement")
def _end(
    tracer: Tracer, trace: Trace, options: CellOptions, error: BaseException | None
) -> MemoryPeakExceededError | None:
    return tracer.end(trace, options, error)


def _block(title: str) -> AbstractContextManager[object]:
    """Return the phase that stands for a trace inside another trace."""
    from nbmem.api import tracing

    block: AbstractContextManager[object] = tracing.phase(title)
    return block


def _run(notebook: Notebook, source: str, local_ns: Mapping[str, object] | None) -> Any:
    """Run code as `%time` does, and return its last expression's value.

    Its exception is passed on to the cell.
    """
    __tracebackhide__ = True
    shell = notebook.shell
    code = shell.transform_cell(source)
    name = shell.compile.cache(code, notebook.hooks.number() or 0, raw_code=source)
    tree = shell.transform_ast(shell.compile.ast_parse(code, filename=name))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    local_ns = shell.user_ns if local_ns is None else local_ns
    exec(shell.compile(tree, name, "exec"), shell.user_ns, local_ns)  # noqa: S102 - the user's code
    if last is None:
        return None
    value = shell.compile(ast.Expression(last.value), name, "eval")
    return eval(value, shell.user_ns, local_ns)  # noqa: S307 - the user's code


@shell_entry("suggest a magic")
def suggest_magic(result: Any) -> None:
    """Name nbmem's magic if a cell failed at one that is spelled like it.

    IPython answers `%%memtrac` by itself, before nbmem is called. Nothing of it is patched: after
    each cell it calls this with the error. The newest ipykernel may pass no result.
    """
    error = getattr(result, "error_in_exec", None)
    if type(error).__name__ != "UsageError":
        return
    unknown = _UNKNOWN.search(str(error))
    if unknown is None:
        return
    percent, name = unknown.groups()
    meant = suggest(name, _MAGICS, f"`{percent}{{}}`", likeness=_LIKENESS)
    if meant:
        notify(f"There is no {percent}{name}. {meant.rstrip()}")
