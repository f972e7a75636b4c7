"""Split the host's memory into its parts at any time.

The latest readings apply. A part is never larger than its whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import ACTIVE, PROCESS, Category
from nbmem.core.session.session import NOT_KNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.core.session.host_memory import MachineReadings

    Ints = NDArray[np.int64]


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
