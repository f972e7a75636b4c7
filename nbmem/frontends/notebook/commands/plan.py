"""`%%nbmem plan`: find what would make a cell fit.

With one percent sign it is the cell above, with two the cell below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.arguments import parser_of
from nbmem.frontends.notebook.commands import estimates as estimate_cells
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook

if TYPE_CHECKING:
    import argparse


_USAGE = "%%nbmem plan"


def _add(parser: argparse.ArgumentParser) -> None:
    from nbmem.estimates import options

    options.add_plan(parser)


def _run(notebook: Notebook, argument: str) -> None:
    _answer(notebook, argument, estimate_cells.cell_above(notebook))


def _run_cell(notebook: Notebook, argument: str, cell: str) -> None:
    _answer(notebook, argument, estimate_cells.cell_below(notebook, cell))


def _answer(notebook: Notebook, argument: str, cell: estimate_cells.CellSource) -> None:
    estimate_cells.begin_question(argument)
    options = parser_of(_USAGE, _add).read(argument)
    from nbmem import estimates
    from nbmem.engine.choice import NO_RANKS, choose
    from nbmem.estimates.options import planned, with_batch, worlds
    from nbmem.estimates.programs import programs

    shell = notebook.shell
    arguments = planned(options)
    names = shell.user_ns
    plain = programs.cell(cell.code, names, title=cell.title)
    ranks = worlds(options)
    program = plain if ranks else with_batch(plain, options.batch, names)
    with estimate_cells.EstimateProgress(shell, "plan") as progress:
        answer: Any
        if ranks:
            choose(options.engine, NO_RANKS)
            answer = estimates.worlds(
                program, options.gpu, ranks, margin=arguments["margin"], tell=progress.add_line
            )
        else:
            answer = estimates.plan(
                program, **arguments, tell=progress.add_line, show=progress.partial
            )
        progress.show(answer)
    answer.write(json=options.json, html=options.html)


COMMAND = MagicCommand(
    "plan",
    "[--gpu NAME] [--ranks N,N] [--target BYTES] [--batch NAME] [--all]",
    "what would make the cell above (%%: below) fit, the cheapest first; files are yours",
    _run,
    _run_cell,
    options=lambda: parser_of(_USAGE, _add).options(),
)
