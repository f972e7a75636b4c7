"""`%%nbmem fit VARIABLE`: find the largest value for which a cell fits.

With one percent sign it is the cell above, with two the cell below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import parser_of
from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands import estimates as asking
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook

if TYPE_CHECKING:
    import argparse

    from nbmem.estimates.answers import AnyAnswer

_USAGE = "%%nbmem fit"


def _add(parser: argparse.ArgumentParser) -> None:
    from nbmem.estimates import options
    from nbmem.estimates.language_models.options import add_method

    parser.add_argument("variable", metavar="VARIABLE")
    options.add_search(parser)
    parser.add_argument(
        "--model", metavar="NAME", help="of this language model and no cell: `fit context`"
    )
    parser.add_argument(
        "--batch", metavar="N,N", help="batches to search the context for (1,2,4,8)"
    )
    add_method(parser)


def _run(notebook: Notebook, argument: str) -> None:
    asking.begin_question(argument)
    options = parser_of(_USAGE, _add).read(argument)
    if options.model is not None:
        _answer_context(notebook, options)
    else:
        _answer(notebook, options, asking.cell_above(notebook))


def _run_cell(notebook: Notebook, argument: str, cell: str) -> None:
    asking.begin_question(argument)
    options = parser_of(_USAGE, _add).read(argument)
    if options.model is not None:
        raise UsageError("With --model there is no cell: write one percent sign, in a line.")
    _answer(notebook, options, asking.cell_below(notebook, cell))


def _answer_context(notebook: Notebook, options: argparse.Namespace) -> None:
    """Search for the longest context of a language model."""
    from nbmem.engine.choice import NO_MODELS, choose
    from nbmem.estimates.language_models import api
    from nbmem.estimates.language_models.options import batches_of, check_context, settings_from
    from nbmem.estimates.options import margin

    choose(options.engine, NO_MODELS)
    check_context(options.variable, options)
    settings, batches = settings_from(options), batches_of(options.batch)
    with asking.EstimateProgress(notebook.shell, f"fit {options.variable}") as progress:
        answer = api.context_answer(
            settings, options.gpu, batches, margin=margin(options), tell=progress.add_line
        )
        progress.show(answer)
    answer.write(json=options.json, html=options.html)


def _answer(notebook: Notebook, options: argparse.Namespace, cell: asking.CellSource) -> None:
    from nbmem import estimates
    from nbmem.estimates.language_models.options import batches_of, bind_or_context, check_context
    from nbmem.estimates.options import margin, search
    from nbmem.estimates.programs import programs

    shell, names = notebook.shell, notebook.shell.user_ns
    program = programs.cell(cell.code, names, title=cell.title)
    program = bind_or_context(program, options.variable, names)
    answer: AnyAnswer
    with asking.EstimateProgress(shell, f"fit {options.variable}") as progress:
        if program.binding is None:
            from nbmem.estimates.language_models import api  # imports much of the report

            check_context(options.variable, options)
            batches, kept = batches_of(options.batch), margin(options)
            answer = api.own_context_answer(
                program,
                options.gpu,
                batches,
                namespace=names,
                margin=kept,
                tell=progress.add_line,
                show=progress.partial,
            )
        else:
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
