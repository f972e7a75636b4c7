"""Account for the memory of a card outside torch's allocator.

It belongs to other frameworks, the CUDA context, other processes and the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.session import NOT_KNOWN
from nbmem.report.ledger.framework_shares import FrameworkUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nbmem.core.session.frameworks import Share
    from nbmem.core.session.session import DeviceTrace

    Ints = NDArray[np.int64]


class NonTorchUsage:
    """Context and other users of a card at any time, by its latest reading.

    The context at a moment is this process's last reading less its reserved bytes and those of
    other frameworks. The first reading is used for the time before it. A reading without this
    process's bytes uses the context of the last one that has them. If the driver always hides them,
    `process_known` is False. The context is then all other used bytes of the card.

    Args:
        trace: What was recorded of the card.
        names: The session's texts.

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
