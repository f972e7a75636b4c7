"""`%%nbmem fit VARIABLE`: find the largest value for which a cell fits.

With one percent sign it is the cell above, with two the cell below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import parser_of
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


def _run(notebook: Notebook, argument: str) -> None:
    _answer(notebook, argument, asking.cell_above(notebook))


def _run_cell(notebook: Notebook, argument: str, cell: str) -> None:
    _answer(notebook, argument, asking.cell_below(notebook, cell))


def _answer(notebook: Notebook, argument: str, cell: asking.CellSource) -> None:
    options = parser_of(_USAGE, _add).read(argument)
    from nbmem import estimates
    from nbmem.estimates.options import search
    from nbmem.estimates.programs import programs

    shell = notebook.shell
    program = programs.cell(
        cell.code,
        shell.user_ns,
        title=cell.title,
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
    "the largest VARIABLE with which the cell above (%%: below) fits; files are yours",
    _run,
    _run_cell,
    options=lambda: parser_of(_USAGE, _add).options(),
    offers=completions.variables,
)
