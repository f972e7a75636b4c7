"""Find IPython's shell, and the cells and lines behind stack frames.

ipykernel compiles each cell under a file name that contains only its hash.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from nbmem.core.session.events import Frame, Stack


def running_shell() -> Any | None:
    """Return this process's IPython shell; None outside of IPython.

    Imports nothing.
    """
    module = sys.modules.get("IPython.core.interactiveshell")
    shells = getattr(module, "InteractiveShell", None)
    return None if shells is None else shells._instance  # noqa: SLF001 - instance() would make one


def user_names() -> dict[str, Any]:
    """Return the notebook's namespace, or `__main__`'s outside of one."""
    shell = running_shell()
    names: dict[str, Any] = vars(sys.modules["__main__"]) if shell is None else shell.user_ns
    return names


def cell_of(filename: str) -> str | None:
    """Return `In [7]` for a cell's file name; None for any other file."""
    number = numbers_of_cells().get(filename)
    if type(number) is int:
        return f"In [{number}]"
    if filename.startswith("<ipython-input-"):
        return f"In [{filename.split('-')[2]}]"
    return None


def number_cell_files(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    """Replace cell files in stacks of this process by numbered names.

    The names have IPython's older form, `<ipython-input-7-cell>`.

    A cell that was run again unchanged has the number of its latest run. Files that IPython does
    not know are unchanged: a cell that ran before it was reset, an IPython before 8.
    """
    numbers = numbers_of_cells()
    if not numbers:
        return tuple(stacks)
    known: dict[Frame, Frame] = {}

    def renamed(frame: Frame) -> Frame:
        number = numbers.get(frame.file)
        if type(number) is not int:
            return frame
        if frame not in known:
            known[frame] = Frame(_named(number), frame.line, frame.function)
        return known[frame]

    return tuple(tuple(map(renamed, stack)) for stack in stacks)


def files_of_cells(stacks: Iterable[Stack]) -> dict[str, str]:
    """Map names of `number_cell_files` to files that cells were compiled as.

    A magic's cell and the code inside it have one number, and the code inside was compiled later. A
    front end may also run code with that number without history. So only files that occur in the
    stacks count.

    Args:
        stacks: The stacks before `number_cell_files`.
    """
    ran = {frame.file for stack in stacks for frame in stack}
    numbers = numbers_of_cells().items()
    return {_named(number): file for file, number in numbers if file in ran and type(number) is int}


def _named(number: int) -> str:
    return f"<ipython-input-{number}-cell>"


def lines_of(file: str, files: Mapping[str, str]) -> list[str]:
    """Read the lines of a frame's file; empty if the file is gone.

    Args:
        file: The file, as `number_cell_files` names it.
        files: Files of cells, from `files_of_cells`.
    """
    return [line.rstrip("\r\n") for line in linecache.getlines(files.get(file, file))]


def numbers_of_cells() -> dict[str, Any]:
    """Return execution counts by file name; empty outside of IPython.

    https://github.com/ipython/ipython/blob/9.8.0/IPython/core/compilerop.py#L84
    """
    numbers = getattr(getattr(running_shell(), "compile", None), "_filename_map", None)
    return numbers if type(numbers) is dict else {}
