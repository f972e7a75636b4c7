"""`%nbmem help`: every subcommand in one table, or one of them in full."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from nbmem.frontends.notebook.commands.base import CompletionRequest, MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle, text_bundle
from nbmem.frontends.notebook.options import HELP, OPTIONS

if TYPE_CHECKING:
    from nbmem.core.arguments import CommandOption

WIDTH = 80
"""Width of a terminal, in characters."""
_LEFT = 22
_MEMTRACE = (
    "Trace the GPU memory of a cell or of one statement, and show the report under it. The cell "
    "runs as it does without."
)


def make_help(
    offered: Callable[[], Iterable[MagicCommand]], find: Callable[[str], MagicCommand]
) -> MagicCommand:
    """Make the subcommand `help`."""

    def run(_notebook: Notebook, argument: str) -> None:
        name = argument.lstrip("%").removeprefix("nbmem ")
        if not name:
            text = help_text(offered())
        elif name == "memtrace":
            text = memtrace_help()
        else:
            text = command_help(find(name))
        show_bundle(text_bundle(text))

    def names(_asked: CompletionRequest) -> Iterable[str]:
        return [*(command.name for command in offered()), "memtrace"]

    return MagicCommand("help", "[NAME]", "this table; one of them in full", run, offers=names)


def help_text(commands: Iterable[MagicCommand]) -> str:
    """Return the table of all subcommands and magics."""
    rows = [(_typed(command), command.help) for command in commands]
    rows += [
        ("%%memtrace [NAME] [OPTIONS]", "trace the cell below and show its report"),
        ("%memtrace [OPTIONS] STATEMENT", "the same for one statement"),
    ]
    more = "`%nbmem help NAME` has one of them in full, `%%memtrace --help` the options of a trace."
    return "\n".join([_columns(rows), "", _paragraph(more)])


def command_help(command: MagicCommand) -> str:
    """Return the help of one subcommand: its syntax, effect and options."""
    text = f"{command.help[:1].upper()}{command.help[1:]}."
    return _page([_typed(command)], text, command.options())


def memtrace_help() -> str:
    """Return the help of `%%memtrace`."""
    return _page(
        ["%%memtrace [NAME] [OPTIONS]", "%memtrace [OPTIONS] STATEMENT"], _MEMTRACE, OPTIONS
    )


def _typed(command: MagicCommand) -> str:
    percent = "%" if command.run_cell is None else "%%"
    return f"{percent}nbmem {command.name} {command.argument}".rstrip()


def _page(usage: Iterable[str], text: str, options: Iterable[CommandOption]) -> str:
    rows = [(f"{one.flag} {one.value or ''}".rstrip(), one.help) for one in (*options, HELP)]
    return "\n".join([*usage, "", _paragraph(text), "", _columns(rows)])


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    """Lay out rows in two columns.

    If the left column is too long, its text begins on the next line.
    """
    lines = []
    for left, right in rows:
        text = _paragraph(right, " " * (_LEFT + 2))
        lines += [f"{left:<{_LEFT}}  {text.lstrip()}" if len(left) <= _LEFT else f"{left}\n{text}"]
    return "\n".join(lines)


def _paragraph(text: str, indent: str = "") -> str:
    """Wrap text between words, never inside one."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
