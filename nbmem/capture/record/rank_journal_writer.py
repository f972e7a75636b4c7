"""Write a rank's journal during recording: one line each second.

A separate thread reads counters and the hooks' sums, and accesses no tensor. A line takes a
millisecond. It delays no rank and needs nothing from any other. It is for a process that will not
finish: one that is killed, or hangs in a collective that others never call.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nbmem.capture.devices.resident_memory import own_bytes
from nbmem.capture.interpreter.main_thread import MainThread
from nbmem.capture.timeouts import expendable
from nbmem.capture.torch_cuda import Counters, device_count, device_info, read_counters, users_peak
from nbmem.core.files.rank_folder import journal_name
from nbmem.core.files.rank_journal import CardState, Entry, JournalFile
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.session.categories import Category

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.capture.record.progress import LoopProgress
    from nbmem.capture.record.recorder import Recorder
    from nbmem.core.session.ranks import Rank
    from nbmem.core.session.session import DeviceInfo

INTERVAL_NS = 10**9
"""Interval between two lines: the most that a killed process loses."""
_LOOK_S = 0.05
"""Interval between two checks for the process group, some microseconds each."""
_SOON_NS = 50_000_000
"""Interval before the second line; it doubles each time, up to INTERVAL_NS."""
_PATIENCE_S = 2.0
"""How long to wait for the thread at the end."""


class JournalWriter:
    """Writes the journal from `start` to `stop`, once the rank is known.

    Args:
        folder: The folder of the world's files.
        name: The script's name.
        recorder: The recorder whose progress is written.

    Attributes:
        own_peak: Highest bytes of the host's memory that were this process's own, as read.
    """

    def __init__(self, folder: Path, name: str, recorder: Recorder) -> None:
        self._folder = folder
        self._name = name
        self._recorder = recorder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbmem journal", daemon=True)
        self._file: JournalFile | None = None
        self._main = MainThread()
        self._rank: Rank | None = None
        self._cards: dict[int, DeviceInfo] = {}
        self._refused_ns = 0
        self.own_peak: int | None = None

    def start(self) -> None:
        """Start the journal's thread."""
        self._thread.start()

    def stop(self, *, saved: bool, rank: Rank | None, error: str | None) -> None:
        """Stop the thread and close the journal.

        Args:
            saved: Whether the session's file is complete, so that the journal is removed.
            rank: How the rank ended, for a journal that remains.
            error: The exception that ended it, as text; or None.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE_S)
        self._main.close()
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if not saved and rank is not None:
                file.write_rank(rank, error)
        except OSError as err:
            self._on_fault(err)
        file.close(remove=saved)

    def _run(self) -> None:
        next_ns, pace_ns = 0, _SOON_NS
        with expendable():
            while not self._stop.wait(_LOOK_S):
                now = CLOCK.monotonic_ns()
                self._check_groups()
                if now >= next_ns:
                    self._write()
                    next_ns = now + pace_ns
                    pace_ns = min(2 * pace_ns, INTERVAL_NS)

    def _check_groups(self) -> None:
        """Check for a new process group.

        A short program has one for less than a second.
        """
        try:
            self._recorder.ranks.glance()
        except Exception as err:  # noqa: BLE001 - as in `_write`
            self._on_fault(err)

    def _write(self) -> None:
        try:
            rank = self._recorder.ranks.update()
            if rank is not None:
                self._write_as(rank)
        except Exception as err:  # noqa: BLE001 - a full disk must not end the training
            self._on_fault(err)

    def _on_fault(self, err: Exception) -> None:
        self._stop.set()
        self._recorder.note(f"The rank's journal stopped: {error_of(err)}. The rest is whole.")

    def _write_as(self, rank: Rank) -> None:
        if self._file is None:
            self._file = JournalFile(self._folder / journal_name(rank))
            self._file.begin(rank, self._name)
        elif rank != self._rank:  # it has a card now, or a mesh
            self._file.write_rank(rank)
        self._rank, file = rank, self._file
        cards = _cards()
        for index, _ in cards:
            self._introduce(file, index)
        refusals = [r for r in tuple(self._recorder.refusals) if r.t_ns > self._refused_ns]
        for refusal in refusals:
            self._refused_ns = refusal.t_ns
            file.add_refusal(refusal)
        progress, own = self._recorder.progress(), own_bytes()
        if own is not None:
            self.own_peak = max(own, self.own_peak or 0)
        file.add(
            Entry(
                t_ns=CLOCK.time_ns(),
                phase=progress.phase,
                step=progress.step,
                cards=tuple(_card_now(index, counters, progress) for index, counters in cards),
                own=own,
                place=self._main.place(),
            )
        )

    def _introduce(self, file: JournalFile, index: int) -> None:
        """Write a card's description before its first figures."""
        size = self._recorder.sampler.card_bytes(index)
        info = device_info(index, size, engine=self._recorder.engine)
        if self._cards.get(index) != info:
            self._cards[index] = info
            file.add_card(info)


def _cards() -> list[tuple[int, Counters]]:
    """Read the cards from which torch holds memory, or held some."""
    found = ((index, read_counters(index)) for index in range(device_count()))
    return [(index, read) for index, read in found if read is not None and read.actions]


def _card_now(index: int, counters: Counters, progress: LoopProgress) -> CardState:
    known = {c.key: size for (card, c), size in progress.known.items() if card == index}
    freed = progress.freed.get(index, 0)
    if freed and Category.GRADIENTS.key in known:
        known[Category.GRADIENTS.key] = max(0, known[Category.GRADIENTS.key] - freed)
    return CardState(
        index=index,
        allocated=counters.allocated,
        reserved=counters.reserved,
        peak=users_peak(index) or counters.peak_allocated,
        known=known,
    )
