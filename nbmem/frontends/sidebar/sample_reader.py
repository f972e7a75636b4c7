"""Sample the cards or the host, and the progress of a traced loop.

Before the user has imported torch, nothing is imported and no driver is queried.
Where torch has no card, the host's memory is sampled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from nbmem.api.tracing import virtual_card
from nbmem.capture.devices.accelerators import accelerator_in_use
from nbmem.capture.devices.host import Host, total_bytes
from nbmem.capture.devices.resident_memory import highest_resident_bytes
from nbmem.capture.frameworks.framework import is_whole
from nbmem.capture.torch_cuda import device_count
from nbmem.core.runtime.clock import CLOCK, now_ms
from nbmem.frontends.sidebar.loop_categories import by_category, parts_of
from nbmem.frontends.sidebar.messages import CardSample, Cell, HostSample, Process, Sample

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.capture.record.progress import LoopProgress
    from nbmem.capture.record.recorder import Recorder
    from nbmem.capture.torch_memory.peak_counters import PeakMeter
    from nbmem.frontends.sidebar.card_reader import CardReader
    from nbmem.frontends.sidebar.rank_messages import RanksNow
    from nbmem.frontends.sidebar.ranks_reader import RanksReader

    Folders = Callable[[], Iterable[Path]]

HOST_DEVICE = -1
"""The host's device number, see capture/record/storage_registry_log.py."""


class HostReader:
    """A reader of this process's resident and the host's available bytes."""

    def __init__(self) -> None:
        self._host = Host()
        self._card: bool | None = None
        self._peak = 0
        self._highest_before = highest_resident_bytes()

    def begin(self) -> None:
        """Restart the peak at the beginning of a cell."""
        self._peak = 0
        self._highest_before = highest_resident_bytes()

    def read(self, progress: LoopProgress | None = None) -> HostSample | None:
        """Sample the host's memory; None where torch has a card.

        Also None before torch is imported, and if the system does not report resident bytes.

        Args:
            progress: Progress of the running trace, which knows the category of some bytes.
        """
        torch = sys.modules.get("torch")
        if not is_whole(torch):  # during its import, calls would fail
            return None
        if device_count() or virtual_card() is not None or accelerator_in_use(torch) is not None:
            return None  # a card may have appeared
        if self._card is None:
            self._card = _is_a_card_here()
        if self._card:
            return None
        reading = self._host.read(None, 0, whole=True)
        if reading.process is None:
            return None
        from nbmem.core.session.host_memory import MachineParts  # imports numpy, as torch has

        total, files = total_bytes(), _at_most(reading.files, reading.process)
        shared = _at_most(reading.shared, reading.process - (files or 0))
        self._peak = max(self._peak, reading.process)
        # The kernel's own peak is of the process: it is this cell's if the cell raised it.
        highest = highest_resident_bytes()
        raised = None not in {highest, self._highest_before} and highest != self._highest_before
        return HostSample(
            total=total,
            process=reading.process,
            peak=max(self._peak, highest or 0) if raised else self._peak,
            peak_exact=raised,
            free=None if reading.used is None else total - reading.used,
            by_category=by_category(progress, HOST_DEVICE, reading.process) if progress else (),
            parts=parts_of(
                MachineParts(tensors=None, files=files, shared=shared, cache=reading.cache)
            ),
        )


def _at_most(part: int | None, whole: int) -> int | None:
    """Limit a part, which was read a moment after its whole."""
    return None if part is None else min(part, whole)


def _is_a_card_here() -> bool:
    """Return whether torch could use a card here, without starting CUDA."""
    version: Any = sys.modules["torch"].version
    if version.cuda is None and getattr(version, "hip", None) is None:
        return False
    from nbmem.api.device_selection import cards_here

    return bool(cards_here())


class Readings:
    """The readers of a kernel, each created when it is first needed.

    Args:
        recorder: The recorder that runs now, or None.

    Attributes:
        cards: Reads the cards; None before torch is imported.
        host: Reads the host; None before a read found no card.
    """

    def __init__(self, recorder: Callable[[], Recorder | None]) -> None:
        self.cards: CardReader | None = None
        self.host: HostReader | None = None
        self._recorder = recorder
        self._folders: Folders = tuple
        self._begun_ns = 0
        self._ranks: RanksReader | None = None
        self._meter: PeakMeter | None = None

    def begin(self, folders: Folders = tuple, meter: PeakMeter | None = None) -> None:
        """Restart the peaks and the ranks at the beginning of a cell.

        Args:
            folders: Returns the folders into which the cell lets ranks write so far.
            meter: Measures the cell's peaks; None if only readings are known.
        """
        self._folders, self._ranks, self._begun_ns = folders, None, CLOCK.time_ns()
        self._meter = meter
        if self.cards is not None:
            self.cards.begin(meter)
        if self.host is not None:
            self.host.begin()

    def read(self, cell: Cell) -> Sample:
        """Sample the memory and the loop's progress while a cell runs."""
        recorder = self._recorder()
        progress = None if recorder is None else recorder.progress()
        cards = self.read_cards(progress)
        return Sample(
            t_ms=now_ms(),
            cell=cell,
            phase=None if progress is None else progress.phase,
            step=None if progress is None else progress.step,
            cards=cards,
            host=None if cards else self._read_host(progress),
        )

    def read_cards(self, progress: LoopProgress | None = None) -> tuple[CardSample, ...]:
        """Sample the cards that torch uses, else unused virtual ones."""
        if "torch" not in sys.modules:
            return ()
        if self.cards is None:
            from nbmem.frontends.sidebar.card_reader import CardReader

            self.cards = CardReader()
            self.cards.begin(self._meter)
        return self.cards.read(progress) or self.cards.read_unused()

    def ranks(self, *, final: bool = False) -> RanksNow | None:
        """Return the ranks that the cell started, if they have changed.

        None if there are none.

        Args:
            final: Read even if the last read was a moment ago.
        """
        folders = tuple(self._folders())
        if not folders:
            return None
        if self._ranks is None:
            from nbmem.frontends.sidebar.ranks_reader import RanksReader

            self._ranks = RanksReader(self._begun_ns)
        return self._ranks.read(folders, final=final)

    def processes(self) -> tuple[Process, ...]:
        """List the other processes on the cards."""
        return () if self.cards is None else self.cards.processes()

    def close(self) -> None:
        """Close the card reader."""
        if self.cards is not None:
            self.cards.close()

    def _read_host(self, progress: LoopProgress | None) -> HostSample | None:
        if "torch" not in sys.modules:
            return None
        if self.host is None:
            self.host = HostReader()
        return self.host.read(progress)


def has_figures(sample: Sample) -> bool:
    """Return whether a sample has anything that a page could show."""
    return bool(sample.cards) or sample.host is not None
