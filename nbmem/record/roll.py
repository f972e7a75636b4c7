"""The roll of what lives where no card of CUDA's is, kept while something is recorded."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session import NOT_KNOWN
from nbmem.probes.cuda import initialized_torch, loaded_torch
from nbmem.probes.devices.accelerators import accelerator
from nbmem.probes.devices.host import Host
from nbmem.probes.roll import MAX_MET, Roll, following

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from nbmem.core.session import DeviceInfo
    from nbmem.probes.devices import DeviceReading

    Ints = NDArray[np.int64]

MAX_READINGS = 400_000
"""Readings of a device; then every second one goes."""


class RollLog:
    """Keeps a roll while something is recorded and CUDA is not up, and reads the device's counters.

    Attributes:
        roll: Whatever is looked at is written there; None before `begin`, and once CUDA came up.
    """

    def __init__(self) -> None:
        self.roll: Roll | None = None
        self._torch: Any = None
        self._mark = 0
        self._rows: list[tuple[int, ...]] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin a roll, unless there are cards whose history tells more."""
        self._torch = loaded_torch()
        if self._torch is not None and initialized_torch() is None:
            self.roll = Roll(self._torch, accelerator(self._torch) or Host())
            self.read()

    def end(self) -> None:
        """Let go of what the roll holds; what is written stays."""
        if self.roll is not None:
            self.roll.close()

    def at_mark(self, mark: int) -> None:
        """Sweep the roll and read the counters, as far as that takes microseconds."""
        if self.roll is None:
            return
        if initialized_torch() is not None:  # what the cards hold is what matters from here on
            self.end()
            self.roll = None
            return
        if self.roll.device.kind == Host.kind and (device := accelerator(self._torch)) is not None:
            self.end()
            self.roll = Roll(self._torch, device)
            self._rows.clear()
        self.roll.sweep(mark)
        self._mark = mark
        self.read(whole=False)

    def read(self, *, whole: bool = True) -> None:
        """Read the counters now, in any thread."""
        if self.roll is not None:
            device = self.roll.device
            for index in range(device.count(self._torch)):
                self._add(index, device.read(self._torch, index, whole=whole))

    def following(self) -> AbstractContextManager[None]:
        """Write down what is looked at meanwhile."""
        return following(self.roll)

    @contextmanager
    def there_since(self, mark: int | None) -> Iterator[None]:
        """What is met meanwhile was there at an earlier mark already: what a call is given."""
        if self.roll is None:
            yield
            return
        self.roll.since = mark
        try:
            yield
        finally:
            self.roll.since = None

    def matters(self, least: int, named: Mapping[int, int]) -> bool:
        """Whether at least so many bytes live that are not among the named, by index."""
        living = {} if self.roll is None else self.roll.living
        return any(size - named.get(-1 - index, 0) >= least for index, size in living.items())

    def notes(self, refused: int) -> Iterator[str]:
        """What a recording without a history cannot say, where there is one.

        Args:
            refused: Graphs that were not read.
        """
        if self.roll is None or not self.roll.met.addr:
            return
        yield self.roll.device.missing
        if refused:
            yield (
                f"{refused} of the backward passes were too quick for their graphs to be read at "
                "a small price: in these, activations are in no category."
            )
        if self.roll.full:
            yield (
                f"More than {MAX_MET} storages were seen; later ones are in no category, and peaks "
                "are those of the time before."
            )

    def devices(self) -> Iterator[tuple[Roll, DeviceInfo]]:
        """The roll, with each device on which something lived."""
        if (roll := self.roll) is not None:
            for index in sorted(roll.living):
                yield roll, roll.device.info(self._torch, index)

    def _add(self, index: int, read: DeviceReading) -> None:
        figures = [NOT_KNOWN if figure is None else figure for figure in read]
        with self._lock:
            self._rows.append((time.time_ns(), self._mark, index, *figures))
            if len(self._rows) >= MAX_READINGS:
                del self._rows[1::2]

    def of(self, index: int) -> Ints:
        """One device's: time, mark, then the fields of a DeviceReading, a row each."""
        with self._lock:
            rows = [(*row[:2], *row[3:]) for row in self._rows if row[2] == index]
        return np.array(sorted(rows), np.int64).reshape(-1, 6)
