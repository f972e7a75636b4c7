"""`%nbmem layers MODEL`: show a model layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import parser_of
from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle

if TYPE_CHECKING:
    import argparse


_USAGE = "%nbmem layers"


def _add(parser: argparse.ArgumentParser) -> None:
    from nbmem.engine.choice import add_engine
    from nbmem.estimates import options

    parser.add_argument("model", metavar="MODEL")
    options.add_layers(parser)
    parser.add_argument("--gpu", metavar="NAME", help="as if on this card")
    add_engine(parser)
    options.add_files(parser)


def _run(notebook: Notebook, argument: str) -> None:
    options = parser_of(_USAGE, _add).read(argument)
    from nbmem import estimates
    from nbmem.estimates.options import shape
    from nbmem.estimates.questions.layers import optimizer_of

    names = notebook.shell.user_ns
    model = names.get(options.model)
    if not hasattr(model, "named_modules"):
        modules = (n for n, value in names.items() if hasattr(value, "named_modules"))
        meant = suggest(options.model, modules)
        said = f"{options.model} is not a torch.nn.Module of this notebook. {meant}"
        raise UsageError(said.rstrip())
    given = names.get(options.input) if options.input else None
    answer = estimates.layers(
        model,
        None if given is not None else shape(options.input, options.batch),
        batch=given,
        optimizer=optimizer_of(dict(names), model),
        gpu=options.gpu,
        engine=options.engine,
        title=options.model,
    ).sorted(options.sort)
    show_bundle(answer._repr_mimebundle_())
    answer.write(json=options.json, html=options.html)


COMMAND = MagicCommand(
    "layers",
    "MODEL [--input SHAPE|NAME] [--batch N] [--sort COLUMN]",
    "list a model layer by layer: parameters by formula, bytes, FLOPs",
    _run,
    options=lambda: parser_of(_USAGE, _add).options(),
    offers=completions.modules,
)
