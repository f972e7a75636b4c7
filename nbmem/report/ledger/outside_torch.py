"""Account for the memory of a card outside torch's allocator.

It belongs to other frameworks, the CUDA context, other processes and the driver.

What other frameworks held, and the parts of the host's memory, are known by their latest readings
at any time. A part is never larger than its whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import ACTIVE, PROCESS, Category
from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.frameworks import FrameworkReadings, Share

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.host_memory import MachineReadings
    from nbmem.core.session.session import DeviceTrace


def parts_at(readings: MachineReadings | None, t_ns: Ints, held: Ints) -> Ints | None:
    """Return the parts of the host's memory at each time.

    The table's shape is (n, len(PARTS)). The first reading is used for the time before it. A part
    that is not reported is NOT_KNOWN.

    Args:
        readings: The readings; None for a card's memory.
        t_ns: The times, nanoseconds since the epoch.
        held: Bytes by category at each time, (n, len(Category)).

    Returns:
        The table; None without readings of the host.
    """
    if readings is None or not len(readings):
        return None
    at = np.maximum(np.searchsorted(readings.t_ns, t_ns, side="right") - 1, 0)

    def most(column: Ints, whole: Ints) -> Ints:
        read: Ints = column[at]
        return np.where(read == NOT_KNOWN, read, np.minimum(read, whole))

    process = held[:, list(PROCESS)].sum(axis=1)
    files = most(readings.files, process)
    columns = (
        most(readings.tensors, held[:, list(ACTIVE)].sum(axis=1)),
        files,
        most(readings.shared, process - np.maximum(files, 0)),
        most(readings.cache, held[:, Category.FREE]),
    )
    return np.stack(columns, axis=1)


class FrameworkUsage:
    """Memory of other frameworks in a recording, by their latest readings.

    A framework holds nothing before its first reading.

    Args:
        readings: What the frameworks reported; None where none was queried.
        names: The session's texts.

    Attributes:
        names: The frameworks' names; columns of the tables below are in this order.
    """

    def __init__(self, readings: FrameworkReadings | None, names: Sequence[str]) -> None:
        codes = [] if readings is None else np.unique(readings.owner).tolist()
        self.names = tuple(names[code] for code in codes)
        self._rows = [] if readings is None else [readings[readings.owner == c] for c in codes]

    def at(self, t_ns: Ints, most: Ints) -> tuple[Ints, Ints]:
        """Return held and unused bytes of each framework at each time.

        Both tables have the shape (times, frameworks).

        Args:
            t_ns: Times, nanoseconds since the epoch.
            most: At each time, the upper bound on the bytes of all frameworks together.
        """
        held, cached = (np.zeros((len(t_ns), len(self._rows)), np.int64) for _ in range(2))
        left = most
        for at, rows in enumerate(self._rows):
            index = np.searchsorted(rows.t_ns, t_ns, side="right") - 1
            size = np.where(index < 0, 0, rows.held[np.maximum(index, 0)])
            used = np.where(rows.used == NOT_KNOWN, rows.held, rows.used)[np.maximum(index, 0)]
            held[:, at] = np.minimum(size, left)
            cached[:, at] = np.maximum(held[:, at] - used, 0)
            left = left - held[:, at]
        return held, cached

    def shares(self, t_ns: Ints, most: Ints) -> list[tuple[Share, ...]]:
        """Return the frameworks' shares at each time, the largest first.

        Those without memory are left out. The arguments are those of `at`.
        """
        found: list[list[Share]] = [[] for _ in t_ns]
        held, cached = self.at(t_ns, most)
        for at, (name, rows) in enumerate(zip(self.names, self._rows, strict=True)):
            index = np.searchsorted(rows.t_ns, t_ns, side="right") - 1
            for time in np.flatnonzero(index >= 0).tolist():
                row, size = index[time], int(held[time, at])
                silent = rows.used[row] == NOT_KNOWN
                share = Share(
                    name=name,
                    held=size,
                    used=None if silent else size - int(cached[time, at]),
                    managed=int(rows.managed[row]),
                )
                if share.held or share.managed:
                    found[time].append(share)
        return [tuple(sorted(one, key=lambda share: (-share.held, share.name))) for one in found]


class NonTorchUsage:
    """Context and other users of a card at any time, by its latest reading.

    The context at a moment is this process's last reading less its reserved bytes and those of
    other frameworks. The first reading is used for the time before it. A reading without this
    process's bytes uses the context of the last one that has them. If the driver always hides them,
    `process_known` is False. The context is then all other used bytes of the card.

    Attributes:
        process_known: Whether the driver has reported this process's bytes at any time.
    """

    def __init__(self, trace: DeviceTrace, names: Sequence[str] = ()) -> None:
        samples = trace.samples
        read = samples[np.flatnonzero(samples.used != NOT_KNOWN)]
        self._total = trace.info.total_bytes
        self._driver = trace.info.driver_bytes
        self._owned = FrameworkUsage(trace.owners, names)
        used = np.maximum(read.used - self._driver, 0)
        self._t_ns = read.t_ns
        known = np.flatnonzero(read.process != NOT_KNOWN)
        self.process_known = bool(len(known))
        if self.process_known:
            latest = np.searchsorted(known, np.arange(len(read)), side="right") - 1
            beyond = np.maximum(read.process[known] - read.reserved[known], 0)
            held, _ = self._owned.at(read.t_ns[known], beyond)
            self._context = (beyond - held.sum(axis=1))[np.maximum(latest, 0)]
            self._read_at, self._process = read.t_ns[known], read.process[known]
        else:
            beyond = np.maximum(used - read.reserved, 0)
            held, _ = self._owned.at(read.t_ns, beyond)
            self._context = beyond - held.sum(axis=1)
            self._read_at, self._process = read.t_ns, used
        rest = np.maximum(used - read.reserved - self._context, 0)
        held, _ = self._owned.at(read.t_ns, rest)
        self._others = rest - held.sum(axis=1)

    def highest_read(self, t0_ns: int, t1_ns: int) -> int:
        """Return the highest process figure read between two times.

        Returns 0 if none was read.
        """
        inside = (self._read_at >= t0_ns) & (self._read_at <= t1_ns)
        return int(self._process[inside].max(initial=0))

    def at(self, t_ns: Ints, reserved: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Return the bytes outside torch's allocator at each time.

        The five arrays are in the order of categories.OUTSIDE. They never exceed the card less its
        reserved bytes.
        """
        left = self._total - reserved
        nothing = np.zeros(len(t_ns), np.int64)
        if not len(self._t_ns):
            return nothing, nothing, nothing, nothing, np.minimum(self._driver, left)
        held, cached = self._owned.at(np.maximum(t_ns, self._t_ns[0]), left)
        unused = cached.sum(axis=1)
        used = held.sum(axis=1) - unused
        left = left - used - unused
        index = np.maximum(np.searchsorted(self._t_ns, t_ns, side="right") - 1, 0)
        context = np.minimum(self._context[index], left)
        others = np.minimum(self._others[index], left - context)
        driver = np.minimum(self._driver, left - context - others)
        return used, unused, context, others, driver

    def shares(self, t_ns: Ints, reserved: Ints) -> list[tuple[Share, ...]]:
        """Return the other frameworks' shares at each time, as in `at`."""
        if not len(self._t_ns):
            return [()] * len(t_ns)
        return self._owned.shares(np.maximum(t_ns, self._t_ns[0]), self._total - reserved)
