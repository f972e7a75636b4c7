"""Sample the cards or the host, and the progress of a traced loop.

Before the user has imported torch, nothing is imported and no driver is queried.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nbmem.core.runtime.clock import CLOCK
from nbmem.frontends.sidebar.messages import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from nbmem.capture.record.progress import LoopProgress
    from nbmem.capture.record.recorder import Recorder
    from nbmem.frontends.sidebar.card_reader import CardReader
    from nbmem.frontends.sidebar.host_reader import HostReader
    from nbmem.frontends.sidebar.messages import CardSample, Cell, HostSample, Process
    from nbmem.frontends.sidebar.rank_messages import RanksNow
    from nbmem.frontends.sidebar.ranks_reader import RanksReader

    Folders = Callable[[], Iterable[Path]]


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

    def begin(self, folders: Folders = tuple) -> None:
        """Restart the peaks and the ranks at the beginning of a cell.

        Args:
            folders: Returns the folders into which the cell lets ranks write so far.
        """
        self._folders, self._ranks, self._begun_ns = folders, None, CLOCK.time_ns()
        for reader in (self.cards, self.host):
            if reader is not None:
                reader.begin()

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
        """Sample the cards that torch uses."""
        if "torch" not in sys.modules:
            return ()
        if self.cards is None:
            from nbmem.frontends.sidebar.card_reader import CardReader

            self.cards = CardReader()
        return self.cards.read(progress)

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
            from nbmem.frontends.sidebar.host_reader import HostReader

            self.host = HostReader()
        return self.host.read(progress)


def has_figures(sample: Sample) -> bool:
    """Return whether a sample has anything that a page could show."""
    return bool(sample.cards) or sample.host is not None


def now_ms() -> float:
    """Return milliseconds since the epoch."""
    return CLOCK.time_ns() / 1e6
