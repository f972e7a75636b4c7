"""`%nbmem diff A B`: compare two cells, files or steps side by side."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace

_STEPS = re.compile(r"step (\d+) (?:step )?(\d+)")
_WORD = re.compile(r"\"([^\"]*)\"|'([^']*)'|(In ?\[\d+\]|\S+)")
USAGE = (
    "%nbmem diff compares two things: `%nbmem diff 3 5` (cells by number or name; quote a name "
    "with blanks), `%nbmem diff a.nbmem b.nbmem` (files), `%nbmem diff step 1 step 5` (steps of "
    "the last trace)."
)


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem.api.testing import diff

    steps = _STEPS.fullmatch(argument)
    if steps is not None:
        last = notebook.last()
        found = diff(last, last, steps=(int(steps[1]), int(steps[2])))
    else:
        words = [next(filter(None, match.groups()), "") for match in _WORD.finditer(argument)]
        if len(words) != 2:
            raise UsageError(USAGE)
        found = diff(*(_side(notebook, word) for word in words))
    show_bundle(found._repr_mimebundle_())


def _side(notebook: Notebook, word: str) -> Trace | str:
    kept = notebook.tracer.kept
    name = re.sub(r"^In ?\[(\d+)\]$", r"\1", word)
    if kept.find(name) is None and Path(word).exists():
        return word
    return kept.get(name)


COMMAND = MagicCommand(
    "diff",
    "A B",
    "compare two traced cells, two files, or `step 1 step 5` of the last trace",
    _run,
    offers=lambda asked: (*completions.kept_traces(asked), *completions.recordings(asked)),
)
