"""Suggest nbmem's magic for a name that IPython does not know.

IPython answers `%%memtrac` by itself, before nbmem is called. Nothing of it is patched: after the
cell, its error is read, and a sentence is written below it.
"""

from __future__ import annotations

import re
from typing import Any

from nbmem.core.suggestions import suggest
from nbmem.frontends.notebook.error_boundary import notify, shell_entry

_UNKNOWN = re.compile(r"(?:Line magic function|Cell magic) `(%+)(\w+)` not found")
_MAGICS = ("memtrace", "nbmem")
_LIKENESS = 0.7
"""Above that of `%memit` and `%memtrace` (0.62): memory_profiler has a magic of that name."""


@shell_entry("suggest a magic")
def post_run_cell(result: Any) -> None:
    """Name nbmem's magic if the cell failed at one that is spelled like it.

    IPython calls this after each cell; the newest ipykernel may pass no result.
    """
    error = getattr(result, "error_in_exec", None)
    if type(error).__name__ != "UsageError":
        return
    unknown = _UNKNOWN.search(str(error))
    if unknown is None:
        return
    percent, name = unknown.groups()
    meant = suggest(name, _MAGICS, f"`{percent}{{}}`", likeness=_LIKENESS)
    if meant:
        notify(f"There is no {percent}{name}. {meant.rstrip()}")
