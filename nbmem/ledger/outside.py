"""What lies outside torch's allocator: context and libraries, other processes, the driver's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session import NOT_KNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.core.session import DeviceTrace

    Ints = NDArray[np.int64]


class Outside:
    """Context and other processes at any time, by the latest reading of the whole card.

    The context of a moment is what the process held beyond its reserved bytes when it was last read
    (the first reading stands for what came before it). A reading in whose middle this process's
    bytes are not known has the context of the last one before it that has. Where the driver hides
    them throughout, `process_known` is False and the context stands for all that the card has in
    use besides the reserved bytes.

    Attributes:
        process_known: Whether the driver says, or has said at one time, what this process holds.
    """

    def __init__(self, trace: DeviceTrace) -> None:
        samples = trace.samples
        read = samples[np.flatnonzero(samples.used != NOT_KNOWN)]
        self._total = trace.info.total_bytes
        self._driver = trace.info.driver_bytes
        used = np.maximum(read.used - self._driver, 0)
        self._t_ns = read.t_ns
        known = np.flatnonzero(read.process != NOT_KNOWN)
        self.process_known = bool(len(known))
        if self.process_known:
            latest = np.searchsorted(known, np.arange(len(read)), side="right") - 1
            context = np.maximum(read.process[known] - read.reserved[known], 0)
            self._context = context[np.maximum(latest, 0)]
            self._read_at, self._process = read.t_ns[known], read.process[known]
        else:
            self._context = np.maximum(used - read.reserved, 0)
            self._read_at, self._process = read.t_ns, used
        self._others = np.maximum(used - read.reserved - self._context, 0)

    def highest_read(self, t0_ns: int, t1_ns: int) -> int:
        """Highest process figure that was read between two times; 0 if none was."""
        inside = (self._read_at >= t0_ns) & (self._read_at <= t1_ns)
        return int(self._process[inside].max(initial=0))

    def at(self, t_ns: Ints, reserved: Ints) -> tuple[Ints, Ints, Ints]:
        """(context, other processes, driver) in bytes at each time; never more than is left."""
        left = self._total - reserved
        if not len(self._t_ns):
            nothing = np.zeros(len(t_ns), np.int64)
            return nothing, nothing, np.minimum(self._driver, left)
        index = np.maximum(np.searchsorted(self._t_ns, t_ns, side="right") - 1, 0)
        context = np.minimum(self._context[index], left)
        others = np.minimum(self._others[index], left - context)
        return context, others, np.minimum(self._driver, left - context - others)
