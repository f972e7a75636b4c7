"""Which cell a line is in: ipykernel compiles each under a file's name that says only its hash."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.core.events import Frame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbmem.core.events import Stack


def with_cells(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    """Stacks of this process whose cells' files have IPython's older form, with the cell's number.

    A cell that was run again unchanged has the number of its latest run. What IPython does not know
    stays as it is: a cell that ran before it was reset, an IPython before 8.
    """
    numbers = _numbers()
    if not numbers:
        return tuple(stacks)
    known: dict[Frame, Frame] = {}

    def told(frame: Frame) -> Frame:
        number = numbers.get(frame.file)
        if type(number) is not int:
            return frame
        if frame not in known:
            known[frame] = Frame(f"<ipython-input-{number}-cell>", frame.line, frame.function)
        return known[frame]

    return tuple(tuple(map(told, stack)) for stack in stacks)


def _numbers() -> dict[str, Any]:
    """Execution counts by the files' names; empty outside of IPython.

    https://github.com/ipython/ipython/blob/9.8.0/IPython/core/compilerop.py#L84
    """
    module: Any = sys.modules.get("IPython.core.getipython")
    shell = None if module is None else module.get_ipython()
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return numbers if type(numbers) is dict else {}
