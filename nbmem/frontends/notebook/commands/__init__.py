"""Register the subcommands of `%nbmem`.

Each has one file and one line in `COMMANDS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest_or_list
from nbmem.frontends.notebook.commands import (
    diff,
    estimate,
    explain,
    export,
    fit,
    free,
    gpu,
    gpus,
    history,
    layers,
    mute,
    on_off,
    open,  # noqa: A004
    plan,
    report,
    save,
    tips,
    top,
    try_tip,
)
from nbmem.frontends.notebook.commands.help import make_help
from nbmem.frontends.notebook.options import asks_for_help

if TYPE_CHECKING:
    from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook

COMMANDS: tuple[MagicCommand, ...] = (
    report.COMMAND,
    history.COMMAND,
    diff.COMMAND,
    tips.COMMAND,
    try_tip.COMMAND,
    explain.COMMAND,
    mute.MUTE,
    mute.UNMUTE,
    top.COMMAND,
    free.COMMAND,
    gpu.COMMAND,
    gpus.COMMAND,
    estimate.COMMAND,
    fit.COMMAND,
    plan.COMMAND,
    layers.COMMAND,
    save.COMMAND,
    export.COMMAND,
    open.COMMAND,
    on_off.ON,
    on_off.OFF,
    make_help(lambda: COMMANDS, lambda name: find_command(name)),  # noqa: PLW0108 - made below
)


def dispatch(notebook: Notebook, line: str, cell: str | None = None) -> None:
    """Run `%nbmem LINE`, or `%%nbmem LINE` with the cell below it.

    Raises:
        NbmemError: The line cannot be run; the text says why and what to do.
    """
    name, _, argument = line.strip().partition(" ")
    argument = argument.strip()
    if asks_for_help(line):  # of an existing subcommand, else of all
        cell, argument = None, "" if name.startswith("-") else name
        name = "help"
    command = find_command(name or "report")
    if argument and not command.argument:
        raise UsageError(f"%nbmem {name} takes nothing after it; {argument!r} was not understood.")
    if cell is None:
        command.run(notebook, argument)
    elif command.run_cell is None:
        raise UsageError(
            f"`%nbmem {name}` takes no cell; write it with one percent sign. The cell was not run."
        )
    else:
        command.run_cell(notebook, argument, cell)


def find_command(name: str) -> MagicCommand:
    """Return the subcommand with this name.

    Raises:
        UsageError: There is no such subcommand.
    """
    for command in COMMANDS:
        if command.name == name:
            return command
    names = [command.name for command in COMMANDS]
    meant = suggest_or_list(name, names, "`%nbmem {}`", lister="`%nbmem help`")
    raise UsageError(f"{name!r} is not a subcommand of %nbmem. {meant}")
