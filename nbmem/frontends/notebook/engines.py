"""Show one report of a cell that is traced on many engines.

Such a cell has `%%px` above `%%memtrace --save FOLDER/`. Each engine records itself and writes into
the folder, as ranks of torchrun do. The notebook that started them shows the folder's contents when
the cell is over.

https://ipyparallel.readthedocs.io/en/9.0/tutorial/magics.html
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import NbmemError
from nbmem.core.files.atomic_write import new_folder
from nbmem.core.files.untrusted_input import expand_home, is_folder
from nbmem.frontends.notebook.display import show_bundle
from nbmem.frontends.notebook.error_boundary import error_boundary, shell_entry
from nbmem.frontends.notebook.options import parse_cell_line
from nbmem.frontends.notebook.transformer import memtrace_line

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.api.rank_recording import RankFolder
    from nbmem.api.tracing import Trace

_PX = re.compile(r"\s*%%px\b[^\n]*\n")
_SAVES = re.compile(r"\bnbmem run\b[^\n]*?\s--save[ =](\S+/)(?=\s|$)")


@shell_entry("show the engines' report")
def show_engines(result: Any) -> None:
    """Show the report of all engines after a `%%px` cell.

    IPython calls this after every cell.
    """
    folder = engines_folder(getattr(getattr(result, "info", None), "raw_cell", None) or "")
    if folder is None:
        return
    with error_boundary("show the engines' report"):
        from nbmem.api.rank_folders import open_world

        show_bundle(open_world(folder)._repr_mimebundle_())


def engines_folder(raw_cell: str) -> str | None:
    """Return the folder that a `%%px` cell's engines write to.

    None for any other cell.
    """
    px = _PX.match(raw_cell)
    line = None if px is None else memtrace_line(raw_cell[px.end() :])
    if line is None:
        return None
    folder = parse_cell_line(line).save
    return folder if folder is not None and is_folder(folder) else None


def ranks_folders(raw_cell: str) -> Iterator[Path]:
    """Yield the folders into which a cell may let other ranks write.

    This process does not record those ranks; the sidebar follows the folders. They are the engines'
    folder, those of `nbmem.recorded` in this process, and arguments of `nbmem run --save` in the
    cell's lines: `!torchrun ... -m nbmem run train.py --save runs/today/`.
    """
    ranks = sys.modules.get("nbmem.api.rank_recording")
    folders = [] if ranks is None else [str(folder) for folder in ranks.WRITTEN]
    folders += _SAVES.findall(raw_cell.replace("\\\n", " "))
    engines = engines_folder(raw_cell)
    for folder in dict.fromkeys([*folders, *([] if engines is None else [engines])]):
        with suppress(NbmemError):
            yield expand_home(folder)


def begin_rank(trace: Trace, place: str | None) -> RankFolder | None:
    """Begin to write a traced cell, as one rank of many, into a folder.

    Returns None if `place` is no folder.

    Raises:
        NotWrittenError: The folder cannot be made.
    """
    if place is None or not is_folder(place):
        return None
    from nbmem.api.rank_recording import RankFolder

    writes = RankFolder(new_folder(place), trace)
    writes.begin()
    return writes


def is_reported_elsewhere(shell: Any, trace: Trace) -> bool:
    """Return whether another process shows the report for this one.

    True on an engine of ipyparallel, and on every rank but 0.
    """
    kernel = type(getattr(shell, "kernel", None))
    if "ipyparallel" in sys.modules and kernel.__module__.startswith("ipyparallel"):
        return True
    session = trace.session
    return session is not None and session.rank is not None and session.rank.number > 0
