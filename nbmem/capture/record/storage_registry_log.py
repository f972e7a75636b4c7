"""The roll of what lives where no card of CUDA's is, kept while something is recorded."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.capture.devices import DeviceReading
from nbmem.capture.devices.accelerators import accelerator, uncounted
from nbmem.capture.devices.host import Host
from nbmem.capture.tensors.active_registry import following
from nbmem.capture.tensors.modules import parameters_behind
from nbmem.capture.tensors.storage_registry import MAX_MET, Roll
from nbmem.capture.tensors.tensors import address_of
from nbmem.capture.torch_cuda import loaded_torch, used_torch
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.interrupts import let_pass
from nbmem.core.session.session import NOT_KNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from nbmem.capture.patches.method_patches import Lost
    from nbmem.core.session.session import DeviceInfo

    Ints = NDArray[np.int64]

MAX_READINGS = 400_000
"""Readings of a device; then every second one goes."""


def _nobody(_part: str, _err: Exception) -> None:
    """Nobody is told."""


class RollLog:
    """Keeps a roll while torch writes no history of what is recorded, and reads counters.

    Attributes:
        roll: Whatever is looked at is written there; None before `begin`, once a card is used,
            and after a fault.
        lost: Leaves a note of a fault.
        over_at: The mark at which a card was found used: what was told before is the host's.
    """

    def __init__(self) -> None:
        self.lost: Lost = _nobody
        self.roll: Roll | None = None
        self.over_at = 0
        self._torch: Any = None
        self._mark = 0
        self._owners: set[int] = set()
        self._rows: list[tuple[int, ...]] = []
        self._last: DeviceReading | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin a roll, unless torch holds memory of cards, whose history tells more."""
        self._torch = loaded_torch()
        if self._torch is not None and used_torch() is None:
            self.roll = Roll(self._torch, uncounted(self._torch))
            self.read()

    def end(self) -> None:
        """Let go of what the roll holds; what is written stays."""
        if self.roll is not None:
            self.roll.close()

    def ask_all(self) -> None:
        """Ask every storage at the next mark whether it is still there: the last one is exact."""
        if self.roll is not None:
            self.roll.ask_all()

    def at_mark(self, mark: int) -> None:
        """Sweep the roll and read the counters, as far as that takes microseconds."""
        if self.roll is None:
            return
        try:
            self._at_mark(mark, self.roll)
        except Exception as err:  # noqa: BLE001 - a guest's manners
            self._give_up(err)

    def _at_mark(self, mark: int, roll: Roll) -> None:
        if used_torch() is not None:  # what the cards hold is what matters from here on
            self.end()
            roll.over = True
            self.roll, self.over_at = None, mark
            return
        if type(roll.device) is Host and (device := accelerator(self._torch)) is not None:
            self.end()
            self.roll = roll = Roll(self._torch, device)
            self._rows.clear()
        roll.sweep(mark)
        self._mark = mark
        self._read(roll, whole=False)

    def read(self) -> None:
        """Read the counters now, with what takes longer, in any thread."""
        if self.roll is None:
            return
        try:
            self._read(self.roll, whole=True)
        except Exception as err:  # noqa: BLE001 - as above
            self._give_up(err)

    def _read(self, roll: Roll, *, whole: bool) -> None:
        for index in range(roll.device.count(self._torch)):
            read = roll.device.read(self._torch, index, whole=whole)
            if read is not self._last:  # the marks of a small step are no news
                self._add(index, read)
            self._last = read

    def _give_up(self, err: Exception) -> None:
        """End the roll after a fault: what hooks have to tell must be heard."""
        let_pass(err)
        self.roll, roll = None, self.roll
        if roll is not None:
            self.lost("the memory where no card is", err)

    def of_host(self) -> bool:
        """Whether it is the host's memory that is written down."""
        return self.roll is not None and self.roll.device.kind == "cpu" and not self.is_over()

    def is_over(self) -> bool:
        """Whether a card has been used since the roll was called last: what it shows is past."""
        return self.roll is not None and used_torch() is not None

    def following(self) -> AbstractContextManager[None]:
        """Write down what is looked at meanwhile."""
        return following(self.roll)

    @contextmanager
    def finding(self) -> Iterator[None]:
        """Find again what is on the roll: what only the end shows was there before, nobody knows.

        Counted, it would make the end the peak.
        """
        if (roll := self.roll) is None:
            yield
            return
        roll.grows = False
        try:
            with following(roll):
                yield
        finally:
            roll.grows = True

    @contextmanager
    def there_since(self, mark: int | None) -> Iterator[None]:
        """What is met meanwhile was there at an earlier mark already: what a call is given.

        Where that is known, what only the end shows is put on the roll, too.
        """
        if (roll := self.roll) is None or mark is None:
            yield
            return
        grew, roll.since, roll.grows = roll.grows, mark, True
        try:
            yield
        finally:
            roll.since, roll.grows = None, grew

    def owned_by(self, owner: Any) -> None:
        """Meet the parameters of a module or an optimizer that is used before any module is called.

        Each owner once: what a call is given is met by the call.
        """
        if self.roll is not None and id(owner) not in self._owners:
            self._owners.add(id(owner))
            for parameter in parameters_behind(owner):
                address_of(parameter)

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
            self._rows.append((CLOCK.time_ns(), self._mark, index, *figures))
            if len(self._rows) >= MAX_READINGS:
                del self._rows[1::2]

    def of(self, index: int) -> Ints:
        """One device's: time, mark, then the fields of a DeviceReading, a row each."""
        with self._lock:
            rows = [(*row[:2], *row[3:]) for row in self._rows if row[2] == index]
        return np.array(sorted(rows), np.int64).reshape(-1, 2 + len(DeviceReading._fields))
