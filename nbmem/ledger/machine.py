"""The host's parts at any time, by the latest readings, never more than what they are parts of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.categories import ACTIVE, PROCESS, Category
from nbmem.core.machine import MachineParts
from nbmem.core.session import known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nbmem.core.machine import MachineReadings

    Ints = NDArray[np.int64]


def parts_at(
    readings: MachineReadings | None, t_ns: Ints, held: Sequence[Sequence[int]]
) -> list[MachineParts | None]:
    """The parts at each time; the first reading stands for what came before it.

    Args:
        readings: What was read; None where it is no host's memory.
        t_ns: The times, nanoseconds since the epoch.
        held: Bytes of each category at each time.
    """
    if readings is None or not len(readings):
        return [None] * len(t_ns)
    index = np.maximum(np.searchsorted(readings.t_ns, t_ns, side="right") - 1, 0)
    return [_parts(readings, int(at), row) for at, row in zip(index, held, strict=True)]


def _parts(readings: MachineReadings, at: int, held: Sequence[int]) -> MachineParts:
    def most(column: Ints, whole: int) -> int | None:
        value = known(int(column[at]))
        return None if value is None else min(value, whole)

    process = sum(held[category] for category in PROCESS)
    files = most(readings.files, process)
    return MachineParts(
        tensors=most(readings.tensors, sum(held[category] for category in ACTIVE)),
        files=files,
        shared=most(readings.shared, process - (files or 0)),
        cache=most(readings.cache, held[Category.FREE]),
    )
