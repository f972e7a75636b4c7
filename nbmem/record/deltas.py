"""What every cell did, from counters read before and after it: cheap enough to leave on."""

from __future__ import annotations

import time

from nbmem.core.errors import NbmemError
from nbmem.core.freed import Reading
from nbmem.core.history import CellDelta
from nbmem.core.interrupts import let_pass
from nbmem.probes.cuda import Counters, device_count, read_counters
from nbmem.probes.nvml import NvmlProbe


class DeltaReader:
    """Reads the cards that torch uses, added up; never makes a CUDA context, never raises."""

    def __init__(self) -> None:
        self._nvml: NvmlProbe | None = NvmlProbe()
        self._before: list[tuple[int, int, int]] = []

    def before(self) -> None:
        """A cell is about to run (cells may nest)."""
        allocated, reserved = _sums()
        self._before.append((time.monotonic_ns(), allocated, reserved))

    def now(self) -> Reading:
        """The counters at this moment."""
        allocated, reserved = _sums()
        return Reading(allocated, reserved, self._process())

    def after(
        self, label: str, error: str | None, execution_count: int | None = None
    ) -> CellDelta | None:
        """The innermost cell has run.

        Args:
            label: What the cell is called.
            error: The exception that ended it, or None.
            execution_count: The number in `In [n]`, if it has one.

        Returns:
            What it did; None if torch has held no GPU memory before or after it.
        """
        if not self._before:
            return None
        t_ns, allocated, reserved = self._before.pop()
        allocated_after, reserved_after = _sums()
        if not (reserved or reserved_after):
            return None
        return CellDelta(
            label=label,
            execution_count=execution_count,
            allocated_before=allocated,
            allocated_after=allocated_after,
            reserved_before=reserved,
            reserved_after=reserved_after,
            peak=None,
            process=self._process(),
            duration_ns=time.monotonic_ns() - t_ns,
            error=error,
        )

    def _process(self) -> int | None:
        if self._nvml is None:
            return None
        try:
            held = [self._nvml.read(c).process for c, _ in _readings()]
        except NbmemError:
            self._nvml = None
            return None
        known = [size for size in held if size is not None]
        return sum(known) if known and len(known) == len(held) else None


def _readings() -> list[tuple[int, Counters]]:
    """The cards from which torch holds memory."""
    try:
        cards = [(i, read_counters(i)) for i in range(device_count())]
    except Exception as err:  # noqa: BLE001 - a delta is a courtesy: nobody must notice its absence
        let_pass(err)
        return []
    return [(i, c) for i, c in cards if c is not None and c.reserved]


def _sums() -> tuple[int, int]:
    readings = [c for _, c in _readings()]
    return sum(c.allocated for c in readings), sum(c.reserved for c in readings)
