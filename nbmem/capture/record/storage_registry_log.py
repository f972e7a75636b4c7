"""Log the storages in memory for which torch keeps no history.

This is the host's memory, and that of accelerators without a history.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.capture.devices import DeviceReading
from nbmem.capture.devices.accelerators import accelerator_in_use, device_without_history
from nbmem.capture.devices.host import Host
from nbmem.capture.tensors.active_registry import activate_registry
from nbmem.capture.tensors.modules import parameters_behind
from nbmem.capture.tensors.storage_registry import MAX_MET, StorageRegistry
from nbmem.capture.tensors.tensors import address_of
from nbmem.capture.torch_cuda import loaded_torch, torch_with_memory
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.events import NOT_KNOWN

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbmem.capture.patches.compilations import OnFault
    from nbmem.core.arrays import Ints
    from nbmem.core.session.session import DeviceInfo

MAX_READINGS = 400_000
"""Readings of a device; at this number every second one is dropped."""


def _ignore(_part: str, _err: Exception) -> None:
    """Ignore a fault."""


class StorageLog:
    """Keeps a storage registry and reads counters while no history exists.

    Attributes:
        registry: The registry to which observed storages are added. None before `begin`, once a
            card is used, and after a fault.
        on_fault: Leaves a note of a fault.
        over_at: The counter sample at which a card was found used. Earlier hook events are the
            host's.
    """

    def __init__(self) -> None:
        self.on_fault: OnFault = _ignore
        self.registry: StorageRegistry | None = None
        self.over_at = 0
        self._torch: Any = None
        self._sample = 0
        self._owners: set[int] = set()
        self._rows: list[tuple[int, ...]] = []
        self._last: DeviceReading | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Create a registry, unless torch holds memory of CUDA cards.

        Their history is more detailed.
        """
        self._torch = loaded_torch()
        if self._torch is not None and torch_with_memory() is None:
            self.registry = StorageRegistry(self._torch, device_without_history(self._torch))
            self.read()

    def end(self) -> None:
        """Release what the registry holds; its entries stay."""
        if self.registry is not None:
            self.registry.close()

    def ask_all(self) -> None:
        """Check every storage for being alive at the next counter sample.

        This makes the last sample exact.
        """
        if self.registry is not None:
            self.registry.check_all_next()

    def at_sample(self, sample: int) -> None:
        """Update the registry and read the counters at a counter sample.

        Only operations of some microseconds are allowed here.
        """
        if self.registry is None:
            return
        try:
            self._at_sample(sample, self.registry)
        except Exception as err:  # noqa: BLE001 - the user's cell must not fail
            self._give_up(err)

    def _at_sample(self, sample: int, registry: StorageRegistry) -> None:
        if torch_with_memory() is not None:  # from here on only the cards' memory matters
            self.end()
            registry.over = True
            self.registry, self.over_at = None, sample
            return
        if (
            type(registry.device) is Host
            and (device := accelerator_in_use(self._torch)) is not None
        ):
            self.end()
            self.registry = registry = StorageRegistry(self._torch, device)
            self._rows.clear()
        registry.sweep(sample)
        self._sample = sample
        self._read(registry, whole=False)

    def read(self) -> None:
        """Read all counters now, slow ones included, in any thread."""
        if self.registry is None:
            return
        try:
            self._read(self.registry, whole=True)
        except Exception as err:  # noqa: BLE001 - as above
            self._give_up(err)

    def _read(self, registry: StorageRegistry, *, whole: bool) -> None:
        for index in range(registry.device.count(self._torch)):
            read = registry.device.read(self._torch, index, whole=whole)
            if read is not self._last:  # samples within a small step repeat it
                self._add(index, read)
            self._last = read

    def _give_up(self, err: Exception) -> None:
        """Drop the registry after a fault.

        Hook events must still be handled.
        """
        reraise_if_from_signal(err)
        self.registry, registry = None, self.registry
        if registry is not None:
            self.on_fault("the memory where no card is", err)

    def of_host(self) -> bool:
        """Return True if the host's memory is registered."""
        return (
            self.registry is not None and self.registry.device.kind == "cpu" and not self.is_over()
        )

    def is_over(self) -> bool:
        """Return True if a card was used since the registry's last update.

        The registry's contents are then outdated.
        """
        return self.registry is not None and torch_with_memory() is not None

    def following(self) -> AbstractContextManager[None]:
        """Register the storages that are observed in the block."""
        return activate_registry(self.registry)

    @contextmanager
    def without_additions(self) -> Iterator[None]:
        """Recognize registered storages in the block without adding new ones.

        It is unknown when a storage was allocated that is first observed at the end. If it were
        counted, the end would be the peak.
        """
        if (registry := self.registry) is None:
            yield
            return
        registry.grows = False
        try:
            with activate_registry(registry):
                yield
        finally:
            registry.grows = True

    @contextmanager
    def dating_back_to(self, sample: int | None) -> Iterator[None]:
        """Date storages first observed in the block back to an earlier sample.

        A call's inputs existed before it, for example. If the sample is known, storages that are
        first observed at the end are registered as well.
        """
        if (registry := self.registry) is None or sample is None:
            yield
            return
        grew, registry.since, registry.grows = registry.grows, sample, True
        try:
            yield
        finally:
            registry.since, registry.grows = None, grew

    def add_parameters_of(self, owner: Any) -> None:
        """Register the parameters of a module or optimizer, once for each owner.

        This is for owners that are used before any module is called. A call's inputs are registered
        by the call.
        """
        if self.registry is not None and id(owner) not in self._owners:
            self._owners.add(id(owner))
            for parameter in parameters_behind(owner):
                address_of(parameter)

    def matters(self, least: int, named: Mapping[int, int]) -> bool:
        """Return True if a device has enough living bytes beyond the named ones.

        Args:
            least: Bytes that are enough.
            named: Named bytes by card; a device of the registry has the key -1 - index.
        """
        living = {} if self.registry is None else self.registry.live_bytes
        return any(size - named.get(-1 - index, 0) >= least for index, size in living.items())

    def notes(self, refused: int) -> Iterator[str]:
        """Yield sentences on what a recording without a history cannot show.

        There are none if no storage was registered.

        Args:
            refused: Graphs that were not read.
        """
        if self.registry is None or not self.registry.columns.addr:
            return
        yield self.registry.device.missing
        if refused:
            yield (
                f"{refused} of the backward passes were too quick for their graphs to be read at "
                "a small price: in these, activations are in no category."
            )
        if self.registry.full:
            yield (
                f"More than {MAX_MET} storages were seen; later ones are in no category, and peaks "
                "are those of the time before."
            )

    def devices(self) -> Iterator[tuple[StorageRegistry, DeviceInfo]]:
        """Yield the registry with each device on which a storage lived."""
        if (registry := self.registry) is not None:
            for index in sorted(registry.live_bytes):
                yield registry, registry.device.info(self._torch, index)

    def _add(self, index: int, read: DeviceReading) -> None:
        figures = [NOT_KNOWN if figure is None else figure for figure in read]
        with self._lock:
            self._rows.append((CLOCK.time_ns(), self._sample, index, *figures))
            if len(self._rows) >= MAX_READINGS:
                del self._rows[1::2]

    def of(self, index: int) -> Ints:
        """Return one device's readings.

        Each row has time, counter sample, then the fields of a DeviceReading.
        """
        with self._lock:
            rows = [(*row[:2], *row[3:]) for row in self._rows if row[2] == index]
        return np.array(sorted(rows), np.int64).reshape(-1, 2 + len(DeviceReading._fields))
