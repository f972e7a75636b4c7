"""Show the progress of `fit`, `plan` and `layers` in a notebook."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.display import show_bundle, text_bundle
from nbmem.frontends.notebook.error_boundary import notify
from nbmem.frontends.notebook.transformer import is_nbmem_magic, memtrace_line

if TYPE_CHECKING:
    from nbmem.frontends.notebook.commands.base import Notebook

LINES = 12
"""Runs in the progress output; older ones scroll away."""


def prepare_estimates(shell: Any) -> None:
    """Start the estimate subprocess while a question is being typed.

    In a notebook only. The process takes seconds to be ready.
    """
    if getattr(shell, "kernel", None) is not None:
        from nbmem.estimates.runs import worker_processes

        worker_processes.prepare()


def begin_question(argument: str) -> None:
    """Start the subprocess for a question of many runs, unless one is idle.

    This comes before anything else is imported, so that the process imports torch meanwhile.

    Args:
        argument: The line of the question. Another engine has a process of its own.
    """
    from nbmem.engine import process

    if "--engine" not in argument and not process.active():
        from nbmem.estimates.runs import worker_processes

        worker_processes.prepare()


def prepare_for_card(shell: Any, *, beside: bool = False) -> None:
    """Start the estimate subprocess with a virtual card.

    A question is likely then. Nothing is started where there is one core, or where a notebook runs
    unattended: there, no user waits for an answer.

    Args:
        shell: The notebook's.
        beside: The card is still to be activated. Both import torch's compiler for seconds, so
            that a core must be idle.
    """
    attended = getattr(getattr(shell, "kernel", None), "_allow_stdin", False)
    if not attended or sys.platform != "linux":
        return
    cores = len(os.sched_getaffinity(0))
    if cores < 2 or (beside and os.getloadavg()[0] > cores - 1):
        return
    from nbmem.engine import process

    if not process.active():  # the engine torch's questions have processes with its own libraries
        prepare_estimates(shell)


class EstimateProgress:
    """A cell output with the runs so far, until the result replaces it.

    After Ctrl-C the results so far stay. A terminal cannot erase output: there each run is a line
    on stderr.
    """

    def __init__(self, shell: Any, title: str) -> None:
        self._lines: list[str] = []
        self._title = title
        self._live = getattr(shell, "kernel", None) is not None
        self._handle: Any = None
        self._known: Any = None

    def __enter__(self) -> Self:
        if self._live:
            from IPython.display import display

            self._handle = display(self._bundle(), raw=True, display_id=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        kept = kind is KeyboardInterrupt and self._known is not None
        if kept:
            left = f"interrupted after {self._runs()}"
            self._put(_with_head(f"{self._title}: {left}", self._known._repr_mimebundle_()))
        elif kind is not None and self._live:
            from IPython.display import clear_output

            clear_output(wait=True)
        if kind is KeyboardInterrupt:
            what = " What was known by then stands in the output." if kept else ""
            notify(
                f"{self._title} was interrupted after {self._runs()}: its process is ended, and "
                f"the notebook is as it was.{what}"
            )

    def add_line(self, text: str) -> None:
        """Add a line for one more finished run."""
        self._lines.append(text)
        if self._handle is None:
            notify(f"{self._title}: {text}")
        elif self._known is None:
            self._handle.update(self._bundle(), raw=True)

    def partial(self, answer: Any, left: str) -> None:
        """Show the result so far, below a line with what is left to do."""
        self._known = answer
        if self._handle is not None:
            self._put(_with_head(f"{self._title}: {left}", answer._repr_mimebundle_()))

    def show(self, answer: Any) -> None:
        """Replace the progress with the result."""
        self._put(answer._repr_mimebundle_())

    def _put(self, bundle: dict[str, Any]) -> None:
        if self._handle is None:
            show_bundle(bundle)
        else:
            self._handle.update(bundle, raw=True)

    def _runs(self) -> str:
        return f"{len(self._lines)} run{'' if len(self._lines) == 1 else 's'}"

    def _bundle(self) -> dict[str, str]:
        head = f"{self._title}: {self._runs()} on the virtual card"
        if not self._lines:
            head = f"{self._title}: starting a virtual card in a process of its own"
        return text_bundle("\n".join([head, *(f"  {text}" for text in self._lines[-LINES:])]))


def _with_head(head: str, bundle: dict[str, Any]) -> dict[str, str]:
    """Put a line of progress above a result's text and HTML.

    Data for a renderer have no place for it, and are left out.
    """
    return {kind: "\n".join([line, bundle[kind]]) for kind, line in text_bundle(head).items()}


class CellSource(NamedTuple):
    """A cell that is estimated: its title, and its code with its line numbers."""

    title: str
    code: str


def cell_below(notebook: Notebook, cell: str) -> CellSource:
    """Return the body of a cell whose first line is the magic."""
    return CellSource(notebook.hooks.title(), f"\n{notebook.shell.transform_cell(cell)}")


def cell_above(notebook: Notebook) -> CellSource:
    """Return the last cell that was run and is no command of nbmem.

    Raises:
        UsageError: There is none.
    """
    cells = list(enumerate(notebook.shell.history_manager.input_hist_raw))
    for number, raw in reversed(cells):
        if raw.strip() and not is_nbmem_magic(raw):
            return cell_numbered(notebook, number)
    raise UsageError(
        "There is no cell above. Run one first, or write two percent signs, and the cell below."
    )


def cell_numbered(notebook: Notebook, number: int) -> CellSource:
    """Return a cell that was run, without its `%%memtrace` line.

    IPython drops empty lines at the top; they are added again, so that lines keep their numbers.
    """
    raw = notebook.shell.history_manager.input_hist_raw[number]
    traced = memtrace_line(raw) is not None
    code = raw.replace(raw.lstrip().partition("\n")[0], "", 1) if traced else raw
    above = "\n" * code[: len(code) - len(code.lstrip())].count("\n")
    return CellSource(f"In [{number}]", above + notebook.shell.transform_cell(code))
