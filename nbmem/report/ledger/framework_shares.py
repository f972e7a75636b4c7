"""Track what other frameworks of this process held of a card.

At any time their latest readings apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.frameworks import Share
from nbmem.core.session.session import NOT_KNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nbmem.core.session.frameworks import FrameworkReadings

    Ints = NDArray[np.int64]


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
