"""`%%nbmem fit VARIABLE`: find the largest value for which a cell fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import parser_of
from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands import estimates as asking
from nbmem.frontends.notebook.commands.base import MagicCommand

if TYPE_CHECKING:
    import argparse

    from nbmem.frontends.notebook.commands.base import Notebook

_USAGE = "%%nbmem fit"


def _add(parser: argparse.ArgumentParser) -> None:
    from nbmem.estimates import options

    parser.add_argument("variable", metavar="VARIABLE")
    options.add_card(parser)
    options.add_world(parser)
    options.add_range(parser)
    options.add_files(parser)


def _run(_notebook: Notebook, _argument: str) -> None:
    raise UsageError(
        "`%%nbmem fit VARIABLE` stands on the first line of a cell, with two percent signs: it "
        "looks for the largest VARIABLE with which the cell below it fits."
    )


def _run_cell(notebook: Notebook, argument: str, cell: str) -> None:
    options = parser_of(_USAGE, _add).read(argument)
    from nbmem import estimates
    from nbmem.estimates.options import search
    from nbmem.estimates.programs import programs

    shell = notebook.shell
    program = programs.cell(
        asking.source_of(shell, cell),
        shell.user_ns,
        title=notebook.hooks.title(),
        vary=options.variable,
    )
    with asking.EstimateProgress(shell, f"fit {options.variable}") as progress:
        answer = estimates.fit(
            program, **search(options), tell=progress.add_line, show=progress.partial
        )
        progress.show(answer)
    answer.write(json=options.json, html=options.html)


COMMAND = MagicCommand(
    "fit",
    "VARIABLE [--gpu NAME] [--between A B] [--step N]",
    "with %%: the largest VARIABLE with which the cell fits; run on a copy, files are yours",
    _run,
    _run_cell,
    options=lambda: parser_of(_USAGE, _add).options(),
    offers=completions.variables,
)
