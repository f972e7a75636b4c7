"""Compute what every cell changed, from counters read before and after.

This is cheap enough to be always on.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.devices.host import Host
from nbmem.capture.devices.nvml import NvmlProbe
from nbmem.capture.torch_cuda import Counters, device_count, read_counters
from nbmem.core.errors import NbmemError
from nbmem.core.freed_memory import Totals
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.cell_delta import CellDelta, CellPeak, HostDelta

if TYPE_CHECKING:
    from collections import deque


class DeltaReader:
    """Reads the summed counters of all cards before and after each cell.

    Only cards from which torch holds memory are read. It never creates a CUDA context and never
    raises.
    """

    def __init__(self) -> None:
        self._nvml: NvmlProbe | None = NvmlProbe()
        self._before: list[tuple[int, _Totals, int | None]] = []
        self._host = Host()
        self._of_host: HostDelta | None = None

    def before(self) -> None:
        """Read the counters before a cell runs; cells may nest."""
        self._before.append((CLOCK.monotonic_ns(), _sums(), self._resident()))

    def before_torch(self, begun_ns: int) -> None:
        """Register the start of a cell that imported torch itself.

        There was nothing on a card before.
        """
        self._before.append((begun_ns, _Totals(0, 0), None))

    def now(self) -> Totals:
        """Return the counters at this moment."""
        sums = _sums()
        return Totals(sums.allocated, sums.reserved, self._process())

    def after(
        self,
        label: str,
        error: str | None,
        execution_count: int | None = None,
        peak: CellPeak | None = None,
    ) -> CellDelta | None:
        """Return what the innermost cell changed.

        Args:
            label: The cell's name.
            error: The exception that ended it, or None.
            execution_count: The number in `In [n]`, if it has one.
            peak: Its highest allocated bytes, if they were measured.

        Returns:
            The difference; None if torch has held no GPU memory before or after the cell.
        """
        self._of_host = None
        if not self._before:
            return None
        t_ns, before, resident = self._before.pop()
        after = _sums()
        if not (before.reserved or after.reserved):
            if (now := self._resident()) is not None:
                self._of_host = HostDelta(
                    label=label,
                    execution_count=execution_count,
                    tensors=None,
                    process_before=resident,
                    process_after=now,
                    duration_ns=CLOCK.monotonic_ns() - t_ns,
                    error=error,
                )
            return None
        return CellDelta(
            label=label,
            execution_count=execution_count,
            allocated_before=before.allocated,
            allocated_after=after.allocated,
            reserved_before=before.reserved,
            reserved_after=after.reserved,
            peak=peak,
            process=self._process(),
            duration_ns=CLOCK.monotonic_ns() - t_ns,
            error=error,
        )

    def keep_of_host(self, rows: deque[HostDelta], trace: Any) -> None:
        """Append the last cell's change of the host's memory to some rows.

        There is such a change only if torch held no memory of a card.

        Args:
            rows: The rows to append to.
            trace: A traced cell's `api.Trace`, which contains its tensors; None for an untraced
                cell.
        """
        delta, self._of_host = self._of_host, None
        if delta is None:
            return
        tensors = None
        with suppress(Exception):  # already noted where the report was shown
            if trace is not None and (made := trace.report()).device.is_host:
                tensors = made.ledger_at_end.allocated - made.ledger_at_start.allocated
        rows.append(replace(delta, tensors=tensors))

    def _resident(self) -> int | None:
        with suppress(Exception):  # optional, as below
            return self._host.read(None, 0, whole=False).process
        return None

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
    """Read the counters of the cards from which torch holds memory."""
    try:
        cards = [(i, read_counters(i)) for i in range(device_count())]
    except Exception as err:  # noqa: BLE001 - a delta is optional: its absence must not matter
        reraise_if_from_signal(err)
        return []
    return [(i, c) for i, c in cards if c is not None and c.reserved]


class _Totals(NamedTuple):
    """Allocated and reserved bytes, summed over all cards."""

    allocated: int
    reserved: int


def _sums() -> _Totals:
    readings = _readings()
    return _Totals(sum(c.allocated for _, c in readings), sum(c.reserved for _, c in readings))
