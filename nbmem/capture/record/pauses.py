"""Leave out the time in which nbmem looked at a function's variables.

The user's code waits for it, between two of its lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.events import Events
    from nbmem.core.session.frameworks import FrameworkReadings
    from nbmem.core.session.host_memory import MachineReadings
    from nbmem.core.session.session import CardSamples, CounterSamples, DeviceTrace, Session

    _T = TypeVar("_T", Events, CounterSamples, CardSamples, FrameworkReadings, MachineReadings)

Pauses = Sequence[tuple[int, int]]
"""Begin and end of each, nanoseconds since the epoch, ascending."""


def without_pauses(session: Session, pauses: Pauses) -> Session:
    """Return a session whose times go on as if there had been no pauses.

    That of a rank stays as it is: its times are compared with those of other processes.
    """
    if not pauses or session.rank is not None:
        return session

    def moved(t_ns: int) -> int:
        return t_ns - sum(min(max(t_ns - begin, 0), end - begin) for begin, end in pauses)

    return replace(
        session,
        devices=tuple(_device(one, pauses) for one in session.devices),
        spans=tuple(
            replace(one, t0_ns=moved(one.t0_ns), t1_ns=moved(one.t1_ns)) for one in session.spans
        ),
        refusals=tuple(replace(one, t_ns=moved(one.t_ns)) for one in session.refusals),
    )


def _device(trace: DeviceTrace, pauses: Pauses) -> DeviceTrace:
    return replace(
        trace,
        events=_table(trace.events, pauses),
        counter_samples=_table(trace.counter_samples, pauses),
        samples=_table(trace.samples, pauses),
        owners=None if trace.owners is None else _table(trace.owners, pauses),
        machine=None if trace.machine is None else _table(trace.machine, pauses),
    )


def _table(table: _T, pauses: Pauses) -> _T:
    t_ns: Ints = table.t_ns
    for begin, end in reversed(pauses):  # a later one does not move the earlier ones
        t_ns = t_ns - np.clip(t_ns - begin, 0, end - begin)
    return replace(table, t_ns=t_ns)
