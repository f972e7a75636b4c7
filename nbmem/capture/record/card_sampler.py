"""Read the whole card ten times a second during a cell, in a thread.

Ten readings a second cost nothing measurable on an H100's host; a hundred doubled a CPU-bound step.
The first and the last reading also run in that thread: a driver that hangs then blocks it, and no
cell.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from nbmem.capture import torch_cuda
from nbmem.capture.devices import nvml, resident_memory
from nbmem.capture.devices.unified_memory import memory_without_nvml
from nbmem.capture.record.framework_log import FrameworkLog
from nbmem.capture.timeouts import GRACE_S, LIMIT_S, expendable, join_expendable
from nbmem.capture.validation import ImpossibleReadingError
from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.runtime.warning_filter import suppress_warnings
from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.session import CardSamples

if TYPE_CHECKING:
    from nbmem.capture.devices.nvml_readings import CardReading
    from nbmem.core.session.frameworks import FrameworkReadings

INTERVAL_S = 0.1
MAX_SAMPLES = 36_000
"""One hour at ten a second. Then every second reading is dropped and the rate is halved."""
RETRIES = 3
"""Attempts to read a card while the reserved bytes remain constant."""
_SMALLER = 8
"""torch may report a larger card than NVML by at most one part in this many."""


class Sampler:
    """Reads NVML (or cudaMemGetInfo) for every card whose memory torch holds.

    The other libraries of this process are also queried for the memory that they hold on that card.

    `start` and `stop` may be called in any order, any number of times, from any thread.

    Args:
        device: The only card to read; None for all.
        note: Called with one sentence if a source is not available.
        also: Called at each reading; reads further counters.
    """

    def __init__(
        self,
        device: int | None,
        note: Callable[[str], None],
        also: Callable[[], object] = int,
    ) -> None:
        self._device = device
        self._note = note
        self._also = also
        self._nvml: nvml.NvmlProbe | None = nvml.NvmlProbe()
        self._owners = FrameworkLog(self._add_note)
        self._rows: dict[int, list[tuple[int, int, int, int, int]]] = {}
        self._cards: dict[int, tuple[int, int]] = {}
        self._others: dict[int, dict[str, int]] = {}
        self._wddm: set[int] = set()
        self._doubted: set[str] = set()
        self._interval = INTERVAL_S
        self._thinned: Counter[int] = Counter()  # by card: how often half of its rows went
        self._stop = threading.Event()
        self._first = threading.Event()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None
        self._left_behind = False

    def start(self) -> None:
        """Start the thread, and wait for its first reading."""
        if self._thread is not None or self._stop.is_set():
            return
        if (why := nvml.hung()) is not None:  # cudaMemGetInfo would hang as well
            self._add_note(why)
            return
        with suppress(ProbeUnavailableError):  # noted by the first reading
            nvml.load()
        resident_memory.resident_bytes()  # imports psutil, also without a time limit
        self._thread = threading.Thread(target=self._run, name="nbmem sampler", daemon=True)
        self._thread.start()
        if not (self._first.wait(LIMIT_S) or self._first.wait(GRACE_S)):
            self._give_up()

    def stop(self) -> None:
        """Stop the thread after one last reading."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is None or thread is threading.current_thread():
            return
        if not join_expendable(thread, lambda: self._busy_since):
            self._give_up()

    def read(self) -> None:
        """Read every card once."""
        with suppress_warnings():
            self._read()

    def _read(self) -> None:
        self._busy_since = CLOCK.monotonic()
        count = torch_cuda.device_count()
        for index in range(count) if self._device is None else (self._device,):
            if index < count and torch_cuda.is_used(index):
                self._read_card(index)
        self._also()
        self._busy_since = None

    def _run(self) -> None:
        with expendable():
            try:
                self.read()
                self._first.set()
                while not self._stop.wait(self._interval):
                    self.read()
                if self._left_behind:
                    return
                self.read()
                self._busy_since = CLOCK.monotonic()
                self._others = {index: self._named(index) for index in self._rows}
            except Exception as err:  # noqa: BLE001 - a broken source must not print into the cell
                self._add_note(f"The readings of the whole card stopped: {error_of(err)}.")
            finally:
                self._first.set()
            if self._nvml is not None:
                self._nvml.close()

    def _give_up(self) -> None:
        """Abandon the thread where it hangs, and note the reason."""
        self._left_behind, self._nvml, self._thread = True, None, None
        self._stop.set()
        self._note(self._owners.give_up() or nvml.give_up())

    def _read_card(self, index: int) -> None:
        for _ in range(RETRIES):
            reserved, owners = _reserved(index), self._owners.read(index)
            doubts: dict[str, str] = {}
            used, process = self._used(index, reserved, doubts)
            if reserved == _reserved(index):
                break
        else:  # the cell allocates too fast now; the next reading is used
            return
        for figure, sentence in doubts.items():  # not before: memory freed meanwhile is no doubt
            self._doubt(figure, sentence)
        rows = self._rows.setdefault(index, [])
        t_ns = CLOCK.time_ns()
        rows.append((t_ns, used, process, reserved, resident_memory.resident_bytes() or NOT_KNOWN))
        whole = used if process == NOT_KNOWN else process
        beside = None if whole == NOT_KNOWN else max(0, whole - reserved)
        self._owners.add(index, t_ns, owners, beside)
        if len(rows) >= MAX_SAMPLES:
            del rows[1::2]
            self._thinned[index] += 1
            self._interval = INTERVAL_S * 2 ** max(self._thinned.values())

    def _used(self, index: int, reserved: int, doubts: dict[str, str]) -> tuple[int, int]:
        """Return the bytes of a card in use, and those of this process.

        Each is NOT_KNOWN if it is not available or impossible.
        """
        if self._nvml is not None:
            try:
                return self._checked(index, self._nvml.read(index), reserved, doubts)
            except ImpossibleReadingError as err:
                doubts["card"] = str(err)
                return NOT_KNOWN, NOT_KNOWN
            except ProbeUnavailableError as err:
                self._nvml = None
                self._add_note(str(err))
        card = memory_without_nvml(index)
        return NOT_KNOWN if card is None else card.total - card.free, NOT_KNOWN

    def _checked(
        self, index: int, reading: CardReading, reserved: int, doubts: dict[str, str]
    ) -> tuple[int, int]:
        """Return the card's and this process's bytes of a plausible reading.

        The reading must agree with torch's figures for the card.

        Raises:
            ImpossibleReadingError: The card's size or its bytes in use contradict torch's figures.
        """
        known, _ = self._cards.get(index, (None, 0))
        if reading.wddm:  # then torch may hold more than the card has
            self._wddm.add(index)
            reserved = min(reserved, reading.used)
        if reading.total != known and (known or reading.total < _least_total(index, reserved)):
            raise ImpossibleReadingError(
                f"NVML says that the card has {reading.total} B, which cannot be: torch's own "
                "figures contradict it. So its figures of the process and of the card are shown as "
                "unknown. Check what nvidia-smi shows."
            )
        if reading.used < reserved:
            raise ImpossibleReadingError(
                f"NVML says that {reading.used} B of the card are in use while torch alone held "
                f"{reserved} B, which cannot be. So its figures of the process and of the card are "
                "shown as unknown. Check what nvidia-smi shows."
            )
        doubts.update(reading.doubts)
        if "driver" not in reading.doubts or known is None:
            self._cards[index] = reading.total, reading.driver
        if reading.process is not None and reading.process < reserved:
            doubts["process"] = (
                f"NVML says that this process holds {reading.process} B while torch alone held "
                f"{reserved} B, which cannot be: that figure is shown as unknown."
            )
            return reading.used, NOT_KNOWN
        return reading.used, NOT_KNOWN if reading.process is None else reading.process

    def _add_note(self, sentence: str) -> None:
        """Note a sentence, unless the sampler's thread was abandoned."""
        if not self._left_behind:
            self._note(sentence)

    def _doubt(self, figure: str, sentence: str) -> None:
        """Note once that a figure was read whose value is impossible."""
        if figure not in self._doubted:
            self._doubted.add(figure)
            self._add_note(sentence)

    def card_bytes(self, device: int) -> tuple[int, int] | None:
        """Return a card's size by NVML and the driver's bytes, or None.

        None if NVML has not described the card.
        """
        return self._cards.get(device)

    def is_wddm(self, device: int) -> bool:
        """Return True if Windows manages a card's memory, according to NVML."""
        return device in self._wddm

    def other_processes(self, device: int) -> dict[str, int]:
        """Return the bytes of other processes on a card, by name.

        They are read now, or were read at the end. Invisible processes are omitted.
        """
        if self._stop.is_set():
            return self._others.get(device, {})
        return self._named(device)

    def _named(self, device: int) -> dict[str, int]:
        if self._nvml is None:
            return {}
        try:
            return self._nvml.read(device, others=True).others
        except ProbeUnavailableError:
            return {}

    def framework_readings(self, device: int, names: dict[str, int]) -> FrameworkReadings:
        """Return what other libraries of this process held of a card.

        `names` collects texts.
        """
        return self._owners.readings(device, names)

    def samples(self, device: int) -> CardSamples:
        """Return one card's readings."""
        return CardSamples.from_rows(self._rows.get(device, ()))


def _reserved(index: int) -> int:
    counters = torch_cuda.read_counters(index)
    return counters.reserved if counters is not None else 0


def _least_total(index: int, reserved: int) -> int:
    """Return the least number of bytes that a card can have.

    It is what torch holds of it, and about what CUDA reports.
    """
    torch = torch_cuda.initialized_torch()
    if torch is None:
        return reserved
    total = int(torch.cuda.get_device_properties(index).total_memory)
    return max(reserved, total - total // _SMALLER)
