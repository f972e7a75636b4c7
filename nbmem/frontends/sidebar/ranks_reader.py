"""Follow the journals of ranks while the cell that started them runs.

The ranks are those of engines or of spawned processes. No request is sent to them. Each rank writes
a line a second into a folder (capture/record/rank_journal_writer.py). Only new lines are read.
"""

from __future__ import annotations

import heapq
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.core.errors import NbmemError
from nbmem.core.files.rank_folder import SESSION_SUFFIX, journal_file
from nbmem.core.files.rank_journal import SUFFIX, Journal
from nbmem.core.files.rank_journal_reader import JournalTail
from nbmem.core.files.session import read_rank
from nbmem.core.runtime.clock import CLOCK, now_ms
from nbmem.core.session.categories import OF_TRAINING
from nbmem.core.session.ranks import Rank, as_one_world
from nbmem.frontends.sidebar.loop_categories import REST, stack_categories
from nbmem.frontends.sidebar.rank_messages import MOST_RANKS, RankNow, RanksNow
from nbmem.report.analysis.world.rank_rows import fullest_of, state_of
from nbmem.views.world_sentences import place_text

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.report.analysis.world.world_report import State

EVERY_S = 1.0
"""Seconds between two reads: a rank writes once a second."""
PATIENCE_S = 0.05
"""Time limit for reading sessions, milliseconds each: a cell's end may wait for it."""
MOST_FOLLOWED = 1024
"""Journals of one folder that are followed."""
CLOCKS_DIFFER_NS = 60 * 10**9
"""By how much another machine's clock may be behind this machine's."""


class RanksReader:
    """A reader of the folders into which a cell's ranks write.

    Args:
        since_ns: When the cell began, nanoseconds since the epoch; older ranks are of another run.
    """

    def __init__(self, since_ns: int) -> None:
        self._since_ns = since_ns
        self._folders: dict[Path, _Folder] = {}
        self._due = 0.0
        self._last: RanksNow | None = None

    def read(self, folders: Iterable[Path], *, final: bool = False) -> RanksNow | None:
        """Return the newest folder's ranks, or None if unchanged.

        The newest folder is the one with the rank that began last.

        Args:
            folders: The folders; they may not exist yet.
            final: Read even if the last read was a moment ago.
        """
        now = CLOCK.monotonic()
        if now < self._due and not final:
            return None
        self._due = now + EVERY_S
        for folder in folders:
            if folder not in self._folders:
                self._folders[folder] = _Folder(folder, self._since_ns)
        begun = {folder: followed.read() for folder, followed in self._folders.items()}
        latest = max(begun, key=begun.__getitem__, default=None)
        ranks, before = None if latest is None else self._folders[latest].ranks(), self._last
        if ranks is None or (before is not None and replace(ranks, t_ms=before.t_ms) == before):
            return None
        self._last = ranks
        return ranks


class _Folder:
    """A folder of ranks, with the journals that are followed."""

    def __init__(self, folder: Path, since_ns: int) -> None:
        self._folder, self._since_ns = folder, since_ns
        self._until = 0.0
        self._tails: dict[str, JournalTail] = {}
        self._rows: dict[str, tuple[Rank, RankNow]] = {}

    def read(self) -> int:
        """Read new journal lines; return the latest rank's start, or 0.

        The start is in nanoseconds since the epoch.
        """
        for name in self._journals() - self._tails.keys():
            if len(self._tails) < MOST_FOLLOWED:
                self._tails[name] = JournalTail(self._folder / name)
        self._until = CLOCK.monotonic() + PATIENCE_S
        for name, tail in self._tails.items():
            self._read_journal(name, tail)
        return max((rank.started_ns for rank, _ in self._of_the_cell()), default=0)

    def ranks(self) -> RanksNow | None:
        """Return the ranks as last read, or None without any.

        If two ranks have one number, the later one counts.
        """
        found = sorted(self._of_the_cell(), key=lambda one: one[0].started_ns)
        if not found:
            return None
        numbered = as_one_world([rank for rank, _ in found])
        by_number = {
            rank.number: replace(row, number=rank.number)
            for rank, (_, row) in zip(numbered, found, strict=True)
        }
        rows = by_number.values()
        most = heapq.nlargest(MOST_RANKS, rows, key=lambda row: (row.peak or 0, -row.number))
        return RanksNow(
            t_ms=now_ms(),
            folder=str(self._folder),
            size=max(rank.world for rank in numbered),
            ranks=tuple(sorted(most, key=lambda row: row.number)),
            left_out=len(rows) - len(most),
        )

    def _of_the_cell(self) -> list[tuple[Rank, RankNow]]:
        here = socket.gethostname()
        return [
            (rank, row)
            for rank, row in self._rows.values()
            if rank.started_ns >= self._since_ns - CLOCKS_DIFFER_NS * (rank.host != here)
        ]

    def _read_journal(self, name: str, tail: JournalTail) -> None:
        known = self._rows.get(name)
        if known is not None and known[1].state in {"finished", "failed"}:
            return
        try:
            journal = tail.latest()
            if journal is not None:
                file = journal_file(self._folder / name, journal)
                self._rows[name] = file.rank, _row(journal, state_of(file))
        except NbmemError:
            return  # another program's; its report says so
        except OSError:  # removed: its session is complete, or is being written
            if known is not None:
                self._ended(name, *known)

    def _ended(self, name: str, rank: Rank, row: RankNow) -> None:
        session = self._folder / (name.removesuffix(SUFFIX) + SESSION_SUFFIX)
        over = replace(row, state="ended", phase=None, at=None)
        with suppress(NbmemError, OSError):
            if session.exists() and CLOCK.monotonic() < self._until:
                found, error = read_rank(session)
                failed = found is not None and found.ended == "failed"
                state: State = "failed" if failed else "finished"
                over = replace(over, state=state, error=error if failed else None)
        self._rows[name] = rank, over

    def _journals(self) -> set[str]:
        try:
            return {one.name for one in self._folder.iterdir() if one.name.endswith(SUFFIX)}
        except OSError:
            return set()


def _row(journal: Journal, state: State) -> RankNow:
    entry = journal.entries[-1] if journal.entries else None
    row = RankNow(
        number=journal.rank.number,
        host=journal.rank.host,
        state=state,
        phase=None,
        step=None,
        card=None,
        total=None,
        allocated=None,
        reserved=None,
        peak=None,
        by_category=(),
        at=None,
        error=journal.error,
    )
    if entry is None:
        return row
    row = replace(row, phase=entry.phase, step=entry.step, at=place_text(entry.place))
    card = fullest_of(entry)
    if card is None:
        return row
    device = next((one for one in journal.devices if one.index == card.index), None)
    known = {c: card.known.get(c.key, 0) for c in OF_TRAINING}
    return replace(
        row,
        card=None if device is None else device.name,
        total=None if device is None else device.total_bytes,
        allocated=card.allocated,
        reserved=card.reserved,
        peak=card.peak,
        by_category=stack_categories(known, card.allocated, REST),
    )
