"""`%nbmem estimate MODEL`: estimate a language model without code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import parser_of
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands import estimates as asking
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook

if TYPE_CHECKING:
    import argparse


_USAGE = "%nbmem estimate"


def _add(parser: argparse.ArgumentParser) -> None:
    from nbmem.estimates import options
    from nbmem.estimates.language_models.options import add_method

    parser.add_argument("model", metavar="MODEL")
    add_method(parser)
    parser.add_argument("--seq", type=int, metavar="N", help="tokens of a sequence (2048)")
    parser.add_argument("--batch", type=int, metavar="N", help="sequences at a time (1)")
    options.add_card(parser)
    options.add_files(parser)


def _run(notebook: Notebook, argument: str) -> None:
    options = parser_of(_USAGE, _add).read(argument)
    from nbmem.estimates.language_models import api
    from nbmem.estimates.language_models.options import settings_from
    from nbmem.estimates.options import margin

    settings = settings_from(options, seq=options.seq, batch=options.batch)
    with asking.EstimateProgress(notebook.shell, f"estimate {options.model}") as progress:
        answer = api.model_answer(
            settings, options.gpu, margin=margin(options), tell=progress.add_line
        )
        progress.show(answer)
    answer.write(json=options.json, html=options.html)


COMMAND = MagicCommand(
    "estimate",
    "MODEL [--method NAME] [--seq N] [--batch N] [--gpu NAME]",
    "what a language model takes to be trained or run, without code: llama-3.1-8b",
    _run,
    options=lambda: parser_of(_USAGE, _add).options(),
    offers=completions.language_models,
)
