"""Log the storages in memory for which torch keeps no history.

This is the host's memory, and that of accelerators without a history.
"""

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
    """Ignore a fault."""


class RollLog:
    """Keeps a storage registry and reads counters while no history exists.

    Attributes:
        roll: The registry to which observed storages are added. None before `begin`, once a card is
            used, and after a fault.
        lost: Leaves a note of a fault.
        over_at: The counter sample at which a card was found used. Earlier hook events are the
            host's.
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
        """Create a registry, unless torch holds memory of CUDA cards.

        Their history tells more.
        """
        self._torch = loaded_torch()
        if self._torch is not None and used_torch() is None:
            self.roll = Roll(self._torch, uncounted(self._torch))
            self.read()

    def end(self) -> None:
        """Release what the registry holds; its entries stay."""
        if self.roll is not None:
            self.roll.close()

    def ask_all(self) -> None:
        """Check every storage for being alive at the next counter sample.

        The last sample is exact by this.
        """
        if self.roll is not None:
            self.roll.ask_all()

    def at_mark(self, mark: int) -> None:
        """Update the registry and read the counters at a counter sample.

        Only what takes microseconds is done.
        """
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
        """Read all counters now, slow ones included, in any thread."""
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
        """Drop the registry after a fault.

        Hook events must still be handled.
        """
        let_pass(err)
        self.roll, roll = None, self.roll
        if roll is not None:
            self.lost("the memory where no card is", err)

    def of_host(self) -> bool:
        """Return True if the host's memory is registered."""
        return self.roll is not None and self.roll.device.kind == "cpu" and not self.is_over()

    def is_over(self) -> bool:
        """Return True if a card was used since the registry's last update.

        What the registry shows is past, then.
        """
        return self.roll is not None and used_torch() is not None

    def following(self) -> AbstractContextManager[None]:
        """Register the storages that are observed in the block."""
        return following(self.roll)

    @contextmanager
    def finding(self) -> Iterator[None]:
        """Recognize registered storages in the block without adding new ones.

        Since when a storage exists that only the end shows is unknown. Counted, it would make the
        end the peak.
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
        """Date storages first observed in the block back to an earlier sample.

        A call's inputs existed before it, for example. Where the sample is known, storages that
        only the end shows are registered, too.
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
        """Register the parameters of a module or optimizer, once for each owner.

        It is for owners that are used before any module is called. A call's inputs are registered
        by the call.
        """
        if self.roll is not None and id(owner) not in self._owners:
            self._owners.add(id(owner))
            for parameter in parameters_behind(owner):
                address_of(parameter)

    def matters(self, least: int, named: Mapping[int, int]) -> bool:
        """Return True if a device has enough living bytes beyond the named ones.

        Args:
            least: Bytes that are enough.
            named: Named bytes by card; a device of the registry has the key -1 - index.
        """
        living = {} if self.roll is None else self.roll.living
        return any(size - named.get(-1 - index, 0) >= least for index, size in living.items())

    def notes(self, refused: int) -> Iterator[str]:
        """Yield sentences on what a recording without a history cannot show.

        There are none if no storage was registered.

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
        """Yield the registry with each device on which a storage lived."""
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
        """Return one device's readings.

        Each row has time, counter sample, then the fields of a DeviceReading.
        """
        with self._lock:
            rows = [(*row[:2], *row[3:]) for row in self._rows if row[2] == index]
        return np.array(sorted(rows), np.int64).reshape(-1, 2 + len(DeviceReading._fields))
