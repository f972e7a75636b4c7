"""The last traced cells, kept so that two of them can be compared: as many as a bound allows."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.core.units import MIB

if TYPE_CHECKING:
    from nbmem.api import Trace
    from nbmem.core.events import Columns
    from nbmem.core.session import Session

MOST_BYTES = 256 * MIB
"""Host memory that kept recordings may hold together; a million events are 41 MiB."""
MOST_CELLS = 50
_CELL = re.compile(r"In \[(\d+)\]")
_FRAME_BYTES = 100
"""A frame of a stack, about: three references and a share of its texts."""
_NAME_BYTES = 60
"""A text, about, beside its characters: itself and a reference."""
_SPAN_BYTES = 400
"""A phase, about: it has positions on every card and two times."""


class KeptTraces:
    """Finished traces, the newest last; the newest is kept whatever its size."""

    def __init__(self) -> None:
        self._traces: deque[tuple[Trace, int]] = deque()
        self._numbers: dict[str, str] = {}

    def add(self, trace: Trace) -> None:
        """Keep a finished trace; older ones go where the bound asks for it."""
        if trace.session is None:
            return
        self._traces.append((trace, session_bytes(trace.session)))
        while len(self._traces) > 1 and (
            len(self._traces) > MOST_CELLS or sum(size for _, size in self._traces) > MOST_BYTES
        ):
            self._traces.popleft()

    def number(self, trace: Trace, number: int | None) -> None:
        """Let a cell that has a name be found by its number, too."""
        if number is not None:
            self._numbers[str(number)] = trace.name

    def names(self) -> list[str]:
        """What `find` knows them by, the newest first: names, and the numbers of their cells."""
        found = list(dict.fromkeys(trace.name for trace, _ in reversed(self._traces)))
        numbers = [number for number, name in self._numbers.items() if name in found]
        plain = [match[1] if (match := _CELL.fullmatch(name)) else name for name in found]
        return list(dict.fromkeys([*plain, *reversed(numbers)]))

    def find(self, name: str) -> Trace | None:
        """The newest with a name; `3` is the cell In [3], whatever it is called."""
        wanted = {name, f"In [{name}]", self._numbers.get(name)}
        return next((trace for trace, _ in reversed(self._traces) if trace.name in wanted), None)

    def get(self, name: str) -> Trace:
        """Find a kept trace by its cell's number or its name.

        Raises:
            UsageError: There is none.
        """
        found = self.find(name)
        if found is None:
            names = ", ".join(dict.fromkeys(trace.name for trace, _ in self._traces))
            raise UsageError(
                f"No traced cell {name!r} is kept, and there is no such file. "
                f"Kept are: {names or 'none yet'}. Older ones go when they hold more than "
                f"{MOST_BYTES // MIB} MiB together; `%nbmem save FILE` keeps one for good."
            )
        return found


def session_bytes(session: Session) -> int:
    """Host memory of a session, about."""
    tables: list[Columns | None] = []
    for device in session.devices:
        tables += [device.events, device.marks, device.samples, device.identities, device.holders]
        for layout in (device.start, device.end):
            tables += [] if layout is None else [layout.segments, layout.blocks]
    columns = sum(
        column.nbytes for table in tables if table is not None for _, column in table.columns()
    )
    texts = sum(len(name) + _NAME_BYTES for name in session.names)
    stacks = _FRAME_BYTES * sum(len(stack) for stack in session.stacks)
    return columns + texts + stacks + _SPAN_BYTES * len(session.spans)
