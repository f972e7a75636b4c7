"""Sample the cards for the sidebar without creating a CUDA context.

Raw counters of torch, NVML's figures and those of other frameworks in this process are read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbmem.api.tracing import virtual_card
from nbmem.capture import torch_cuda
from nbmem.capture.devices import resident_memory
from nbmem.capture.devices.nvml import NvmlProbe
from nbmem.capture.devices.unified_memory import memory_without_nvml
from nbmem.capture.frameworks.readings import FrameworkQueries
from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.session.categories import Category
from nbmem.engine import process
from nbmem.frontends.sidebar.loop_categories import by_category
from nbmem.frontends.sidebar.messages import CardSample, Entry, Process

if TYPE_CHECKING:
    from nbmem.capture.record.progress import LoopProgress
    from nbmem.capture.torch_memory.peak_counters import PeakMeter


class FrameworkReader:
    """A reader of the frameworks that are loaded.

    Faults of a framework are reported by the notes of a trace.
    """

    def __init__(self) -> None:
        self._owners = FrameworkQueries(lambda _: None)

    def read(self, device: int, most: int | None) -> tuple[Entry, ...]:
        """Sum the bytes that other frameworks use, and those they cache.

        Args:
            device: CUDA ordinal.
            most: Bytes that they can hold together; None if unknown.
        """
        if most is None:
            return ()
        shares = self._owners.read_in_time(device)
        held, cached = sum(share.held for share in shares), sum(share.cached for share in shares)
        names = " and ".join(sorted(share.label for share in shares if share.held))
        if not held or held > most:
            return ()
        sizes = (
            (Category.FRAMEWORKS, "", held - cached),
            (Category.FRAMEWORKS_CACHED, ", cached", cached),
        )
        return tuple((c.key, f"{names}{what}", size) for c, what, size in sizes if size)


RETRIES = 3
"""Readings tried until the reserved bytes before and after the driver's reading are equal."""


class CardReader:
    """A reader of every card from which torch holds memory."""

    def __init__(self) -> None:
        self._nvml: NvmlProbe | None = NvmlProbe()
        self._frameworks = FrameworkReader()
        self._answering: Any = None
        self._meter: PeakMeter | None = None
        self._highest: dict[int, int] = {}
        self._progress: LoopProgress | None = None
        self._named: dict[int, tuple[int, tuple[Entry, ...]]] = {}
        self._names: dict[int, str] | None = None

    def begin(self, meter: PeakMeter | None = None) -> None:
        """Restart the peaks at the beginning of a cell.

        Args:
            meter: Measures the cell's peaks; None if only readings are known.
        """
        self._meter = meter
        self._highest.clear()
        self._named.clear()
        for index in range(torch_cuda.device_count()):
            counters = torch_cuda.read_counters(index)
            if counters is not None and counters.reserved:
                self._highest[index] = counters.allocated

    def read(self, progress: LoopProgress | None = None) -> tuple[CardSample, ...]:
        """Sample each card.

        Args:
            progress: Progress of the running trace, which knows the category of some bytes.
        """
        self._follow_virtual_card()
        self._progress = progress
        return tuple(
            sample
            for index in range(torch_cuda.device_count())
            if (sample := self._card(index)) is not None
        )

    def read_unused(self) -> tuple[CardSample, ...]:
        """Describe the virtual cards before anything is put on them."""
        self._follow_virtual_card()
        if self._answering is None and not process.active():
            return ()
        self._name(0)  # reads the names of all
        found = []
        for index in sorted(self._names or ()):
            total, free, taken, driver, shared = self._driver(index)
            found.append(
                CardSample(
                    index=index,
                    name=self._name(index),
                    virtual=True,
                    total=total,
                    allocated=0,
                    reserved=0,
                    process=taken,
                    free=free,
                    driver=driver,
                    peak=0,
                    peak_exact=True,
                    by_category=(),
                    frameworks=(),
                    shared=shared,
                )
            )
        return tuple(found)

    def torchs_peak(self, sample: CardSample) -> int:
        """Return torch's peak counter, as the user resets it.

        A sample has the peak of a cell instead.
        """
        peak = torch_cuda.users_peak(sample.index)
        return sample.peak if peak is None else peak

    def processes(self) -> tuple[Process, ...]:
        """List the other processes on these cards, largest first.

        These are the processes that the driver names.
        """
        if self._nvml is None:
            return ()
        found = []
        for index in range(torch_cuda.device_count()):
            try:
                others = self._nvml.other_processes(index)
            except ProbeUnavailableError:
                continue
            found += [
                Process(
                    card=index,
                    pid=pid,
                    name=resident_memory.program_name(pid),
                    notebook=resident_memory.notebook_of(pid),
                    used=used,
                )
                for pid, used in others.items()
            ]
        return tuple(sorted(found, key=lambda process: (-process.used, process.pid)))

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            self._nvml.close()

    def _card(self, index: int) -> CardSample | None:
        counters = torch_cuda.read_counters(index)
        if counters is None or not counters.reserved:
            return None
        for _ in range(RETRIES):
            before = counters.reserved
            total, free, taken, driver, shared = self._driver(index)
            counters = torch_cuda.read_counters(index) or counters
            if counters.reserved == before:
                break
        else:  # the cell takes memory too fast now: use its counters alone
            free = taken = None
        peak, exact = self._peak(index, counters.allocated)
        return CardSample(
            index=index,
            name=self._name(index),
            virtual=self._answering is not None or process.active(),
            total=total,
            allocated=counters.allocated,
            reserved=counters.reserved,
            process=taken,
            free=free,
            driver=driver,
            shared=shared,
            peak=peak,
            peak_exact=exact,
            by_category=self._by_category(index, counters.allocated),
            frameworks=self._frameworks.read(
                index, None if taken is None else max(0, taken - counters.reserved)
            ),
        )

    def _by_category(self, index: int, allocated: int) -> tuple[Entry, ...]:
        """Return allocated bytes by category, as the trace knows them.

        After the trace has ended, they are valid until something is allocated or freed.
        """
        if self._progress is not None:
            self._named[index] = allocated, by_category(self._progress, index, allocated)
        was, named = self._named.get(index, (allocated, ()))
        return named if was == allocated else ()

    def _peak(self, index: int, allocated: int) -> tuple[int, bool]:
        """Return a card's peak since the cell began, and whether it is exact.

        Without a meter it is the highest reading.
        """
        found = None if self._meter is None else self._meter.read(index)
        if found is not None and found.allocated >= allocated:
            return found.allocated, found.exact
        self._highest[index] = max(self._highest.get(index, 0), allocated)
        return self._highest[index], False

    def _driver(self, index: int) -> tuple[int | None, int | None, int | None, int, bool]:
        """Read (total, free, process, driver, shared) of a card.

        The first four are bytes; `driver` is what the driver reserves. `shared` is whether they are
        the host's memory.
        """
        if self._nvml is not None:
            try:
                reading = self._nvml.read(index)
            except ProbeUnavailableError:
                self._nvml = None
            else:
                free = reading.total - reading.used
                return reading.total, free, reading.process, reading.driver, reading.shared
        card = memory_without_nvml(index)
        if card is None:
            return None, None, None, 0, False
        return card.total, card.free, None, 0, card.shared

    def _name(self, index: int) -> str | None:
        """Return the driver's name for a card, queried once; None if unknown."""
        if self._names is None:
            self._names = {}
            with suppress(ProbeUnavailableError):
                cards = () if self._nvml is None else self._nvml.cards()
                self._names = {card.index: card.name for card in cards}
        return self._names.get(index)

    def _follow_virtual_card(self) -> None:
        """Reset NVML and the peaks when a virtual card starts or stops.

        After that, NVML reports another card.
        """
        answering = virtual_card()
        if answering is not self._answering:
            self._answering = answering
            self._nvml, self._names = NvmlProbe(), None
            self._highest.clear()
