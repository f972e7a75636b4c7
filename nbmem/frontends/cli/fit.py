"""`nbmem fit SCRIPT --vary NAME`: find the largest value that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.frontends.cli.estimates import finish, progress
from nbmem.frontends.cli.subcommand import Subcommand, targets

if TYPE_CHECKING:
    import argparse

    from nbmem.estimates.answers import AnyAnswer


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from nbmem.estimates import options
    from nbmem.estimates.language_models.options import add_method

    parser.add_argument(
        "script", metavar="SCRIPT", nargs="?", help="the Python file to run, many times"
    )
    parser.add_argument(
        "--vary",
        metavar="NAME",
        required=True,
        help="the variable: `NAME = 32` in the script, or its argument: `-- --NAME 32`; context "
        "for the length of a language model's sequences",
    )
    options.add_search(parser)
    model = parser.add_argument_group("a language model instead of a script")
    model.add_argument("--model", metavar="NAME", help="as in `nbmem estimate`")
    parser.add_argument("--batch", metavar="N,N", help="batches to search the context for")
    add_method(parser)


def run(options: argparse.Namespace) -> int:
    """Search for the largest value that fits, and print the answer."""
    from nbmem import estimates
    from nbmem.estimates.language_models import api
    from nbmem.estimates.language_models.options import batches_of, bind_or_context, check_context
    from nbmem.estimates.options import margin, search
    from nbmem.estimates.programs import programs

    files = targets(options)
    if options.model is not None:
        return _fit_context(options)
    if options.script is None:
        raise UsageError("Name a script: nbmem fit train.py --vary batch. Or a --model.")
    arguments = tuple(options.script_arguments)
    program = bind_or_context(programs.script(options.script, arguments), options.vary)
    answer: AnyAnswer
    if program.binding is None:
        check_context(options.vary, options)
        batches, kept = batches_of(options.batch), margin(options)
        with progress("fit") as tell:
            answer = api.own_context_answer(program, options.gpu, batches, margin=kept, tell=tell)
    else:
        with progress("fit") as tell:
            answer = estimates.fit(program, **search(options), tell=tell)
    return finish(answer, files)


def _fit_context(options: argparse.Namespace) -> int:
    """Search for the longest context of a language model."""
    from nbmem.engine.choice import NO_MODELS, choose
    from nbmem.estimates.language_models import api
    from nbmem.estimates.language_models.options import batches_of, check_context, settings_from
    from nbmem.estimates.options import margin

    if options.script is not None:
        raise UsageError("Name a script or a --model, not both.")
    choose(options.engine, NO_MODELS)
    files = targets(options)
    check_context(options.vary, options)
    settings, batches = settings_from(options), batches_of(options.batch)
    with progress("fit") as tell:
        answer = api.context_answer(
            settings, options.gpu, batches, margin=margin(options), tell=tell
        )
    return finish(answer, files)


COMMAND = Subcommand(
    "fit", "find the largest value of a variable that fits on a card", configure, run
)
