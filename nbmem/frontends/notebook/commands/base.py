"""Define the interface of a `%nbmem` subcommand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.errors import UsageError

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.core.arguments import CommandOption
    from nbmem.frontends.notebook.cell_hooks import CellHooks
    from nbmem.frontends.notebook.tracer import Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook:
    """The parts of the extension that a subcommand may use."""

    shell: Any
    tracer: Tracer
    hooks: CellHooks

    def last(self) -> Trace:
        """Return the last recording.

        Raises:
            UsageError: There is no recording yet.
        """
        if self.tracer.last is None:
            raise UsageError(
                "There is no report yet: no cell has been traced. "
                "Put %%memtrace on the first line of a cell and run it."
            )
        return self.tracer.last


class CompletionRequest(NamedTuple):
    """The position of the cursor in a `%nbmem` line when Tab was pressed.

    Attributes:
        notebook: The notebook whose names, cells and files are completed.
        before: The words between the subcommand and the cursor's word.
        word: The part of the cursor's word before the cursor.
        below: The cell below the line.
    """

    notebook: Notebook
    before: tuple[str, ...]
    word: str
    below: str


class MagicCommand(NamedTuple):
    """A subcommand of `%nbmem`.

    Attributes:
        name: What the user types after `%nbmem`.
        argument: Its argument, for the help; empty if it has none.
        help: What it does.
        run: Runs it; raises NbmemError with a sentence for the user.
        run_cell: Runs it with the cell below `%%nbmem`; None if it takes no cell.
        options: Its options with dashes, for the help and for Tab.
        offers: Returns other words for the cursor's position; Tab filters them by prefix.
    """

    name: str
    argument: str
    help: str
    run: Callable[[Notebook, str], None]
    run_cell: Callable[[Notebook, str, str], None] | None = None
    options: Callable[[], Iterable[CommandOption]] = tuple
    offers: Callable[[CompletionRequest], Iterable[str]] = lambda _: ()


def file_name(argument: str, command: str) -> str:
    """Return the file that the user named, without quotes.

    Raises:
        UsageError: No name was given.
    """
    name = argument.strip().strip("\"'")
    if not name:
        raise UsageError(f"%nbmem {command} needs a file: `%nbmem {command} run.nbmem`.")
    return name
