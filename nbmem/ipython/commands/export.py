"""`%nbmem export FORMAT FILE`: the last recording for another program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.ipython.commands import candidates
from nbmem.ipython.commands.base import MagicCommand, file_name, text_bundle
from nbmem.ipython.options import DEVICE
from nbmem.ipython.showing import show_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook

_LINE = re.compile(r"(\S+)\s+(.+?)(?:\s+--device\s+(\d+))?")


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem.views.exports import FORMATS, find_format

    line = _LINE.fullmatch(argument)
    if line is None:
        listed = "\n".join(f"  {known.name:<10}{known.what}" for known in FORMATS)
        raise UsageError(f"%nbmem export needs a format and a file. The formats are:\n{listed}")
    chosen, device = find_format(line[1]), line[3]
    name = file_name(line[2], f"export {chosen.name}")
    path = notebook.last().export(chosen.name, name, None if device is None else int(device))
    show_bundle(text_bundle(f"Wrote {path}: {chosen.what}."))


COMMAND = MagicCommand(
    "export",
    "FORMAT FILE [--device N]",
    "write the last recording as html, json, csv, perfetto or snapshot",
    _run,
    options=lambda: (DEVICE,),
    offers=lambda asked: candidates.files(asked) if asked.before else candidates.formats(),
)
