"""Readings of the whole card while a cell runs: ten a second, from a thread of its own.

Ten a second cost nothing measurable on an H100's host, a hundred doubled a CPU-bound step.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.session import NOT_KNOWN, Samples
from nbmem.probes import cuda, host
from nbmem.probes.nvml import NvmlProbe

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_S = 0.1
MAX_SAMPLES = 36_000
"""One hour at ten a second; then every second reading is thrown away and the pace is halved."""


RETRIES = 3
"""The reserved bytes must be the same before and after a reading of the card."""


class Sampler:
    """Reads NVML (or cudaMemGetInfo) for every card from which torch holds memory.

    Args:
        device: The one card to read; None for all.
        note: Called with one sentence if a source is not there.
    """

    def __init__(self, device: int | None, note: Callable[[str], None]) -> None:
        self._device = device
        self._note = note
        self._nvml: NvmlProbe | None = NvmlProbe()
        self._rows: dict[int, list[tuple[int, int, int, int, int]]] = {}
        self._cards: dict[int, tuple[int, int]] = {}
        self._interval = INTERVAL_S
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, with one reading at once."""
        self.read()
        self._thread = threading.Thread(target=self._run, name="nbmem sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, with one last reading."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
            self._thread = None
        self.read()
        if self._nvml is not None:
            self._nvml.close()

    def read(self) -> None:
        """Read every card once."""
        count = cuda.device_count()
        for index in range(count) if self._device is None else (self._device,):
            if index < count and _reserved(index):
                self._read_card(index)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.read()
            except Exception as err:  # noqa: BLE001 - a broken source must not print into the cell
                self._note(f"The readings of the whole card stopped: {err!r}.")
                return

    def _read_card(self, index: int) -> None:
        for _ in range(RETRIES):
            reserved = _reserved(index)
            used, process = self._used(index)
            if reserved == _reserved(index):
                break
        else:  # the cell takes memory too fast just now; the next reading will do
            return
        rows = self._rows.setdefault(index, [])
        rows.append((time.time_ns(), used, process, reserved, host.resident_bytes() or NOT_KNOWN))
        if len(rows) >= MAX_SAMPLES:
            del rows[1::2]
            self._interval *= 2

    def _used(self, index: int) -> tuple[int, int]:
        if self._nvml is not None:
            try:
                reading = self._nvml.read(index)
            except ProbeUnavailableError as err:
                self._nvml = None
                self._note(str(err))
            else:
                self._cards[index] = reading.total, reading.driver
                process = NOT_KNOWN if reading.process is None else reading.process
                return reading.used, process
        card = cuda.card_bytes(index)
        if card is None:
            return NOT_KNOWN, NOT_KNOWN
        return card[1] - card[0], NOT_KNOWN

    def card_bytes(self, device: int) -> tuple[int, int] | None:
        """(the card's bytes by NVML, those that the driver keeps); None without NVML."""
        return self._cards.get(device)

    def other_processes(self, device: int) -> dict[str, int]:
        """Bytes of the other processes on a card now, by name, where visible."""
        if self._nvml is None:
            return {}
        try:
            return self._nvml.read(device, others=True).others
        except ProbeUnavailableError:
            return {}

    def samples(self, device: int) -> Samples:
        """One card's readings."""
        rows = np.array(self._rows.get(device, []), np.int64).reshape(-1, 5)
        t_ns, used, process, reserved, resident = (rows[:, i].copy() for i in range(5))
        return Samples(t_ns=t_ns, used=used, process=process, reserved=reserved, host=resident)


def _reserved(index: int) -> int:
    counters = cuda.read_counters(index)
    return counters.reserved if counters is not None else 0
