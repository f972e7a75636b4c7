"""Keep the last traced cells, within bounds, for comparison."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.core.runtime.data_size import held_bytes
from nbmem.core.units import MIB

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace

MAX_BYTES = 256 * MIB
"""Limit on the host memory of all retained recordings; a million events are 41 MiB."""
MAX_CELLS = 50
_CELL = re.compile(r"In \[(\d+)\]")


@dataclass(slots=True)
class _Kept:
    trace: Trace
    size: int
    number: str | None = None


class TraceHistory:
    """Finished traces, the newest last; the newest is kept whatever its size.

    Only the newest retains its reports, which are larger than their data.
    """

    def __init__(self) -> None:
        self._traces: deque[_Kept] = deque()

    def add(self, trace: Trace) -> None:
        """Add a finished trace, and drop the oldest ones above the bounds."""
        if trace.session is None:
            return
        for earlier in self._traces:
            earlier.trace.release_reports()
        self._traces.append(_Kept(trace, held_bytes((trace.session, trace.cells))))
        while len(self._traces) > 1 and (
            len(self._traces) > MAX_CELLS or sum(kept.size for kept in self._traces) > MAX_BYTES
        ):
            self._traces.popleft()

    def number(self, trace: Trace, number: int | None) -> None:
        """Make a named trace findable by its cell's number, too."""
        for kept in self._traces:
            if kept.trace is trace and number is not None:
                kept.number = str(number)

    def number_of(self, trace: Trace) -> int | None:
        """Return the number of a trace's cell, or None."""
        for kept in self._traces:
            if kept.trace is trace and kept.number is not None:
                return int(kept.number)
        return None

    def names(self) -> list[str]:
        """Return what `find` accepts, the newest first.

        These are the traces' names and the numbers of their cells.
        """
        newest = tuple(reversed(self._traces))
        names = [kept.trace.name for kept in newest]
        plain = [match[1] if (match := _CELL.fullmatch(name)) else name for name in names]
        numbers = [kept.number for kept in newest if kept.number is not None]
        return list(dict.fromkeys([*plain, *numbers]))

    def find(self, name: str) -> Trace | None:
        """Return the newest trace with a name or cell number, or None.

        `3` is the cell In [3], even if it has a name.
        """
        names = {name, f"In [{name}]"}
        newest = reversed(self._traces)
        found = (kept.trace for kept in newest if kept.trace.name in names or kept.number == name)
        return next(found, None)

    def get(self, name: str) -> Trace:
        """Find a kept trace by its cell's number or its name.

        Raises:
            UsageError: There is no such trace.
        """
        found = self.find(name)
        if found is None:
            names = ", ".join(dict.fromkeys(kept.trace.name for kept in self._traces))
            raise UsageError(
                f"No traced cell {name!r} is kept, and there is no such file. "
                f"Kept are: {names or 'none yet'}. Older ones go when they hold more than "
                f"{MAX_BYTES // MIB} MiB together; `%nbmem save FILE` keeps one for good."
            )
        return found
