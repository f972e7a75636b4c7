"""A rank's journal: its memory as one line of JSON each second.

A killed process loses at most its last second. The first line contains the rank, each other one the
memory at that moment. A process may end within a line, so an incomplete last line is ignored. When
the session's own file is complete, the journal is removed: it contains nothing that the session
lacks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbmem.core.files.header import info_json, refusal_json
from nbmem.core.files.rank_json import rank_json

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session.events import Stack
    from nbmem.core.session.oom import Refusal
    from nbmem.core.session.ranks import Rank
    from nbmem.core.session.session import DeviceInfo

SUFFIX = ".journal"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """Memory that a process held on one card at a moment.

    Attributes:
        index: CUDA ordinal.
        allocated: Bytes in live blocks.
        reserved: Bytes held from the driver.
        peak: Highest allocated bytes until then, from torch's own counter.
        known: Bytes by the key of their category, as far as hooks had observed them.
    """

    index: int
    allocated: int
    reserved: int
    peak: int
    known: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a journal.

    Attributes:
        t_ns: When, nanoseconds since the epoch.
        phase, step: Phase and step of the training loop; None outside of one.
        cards: The cards that it used.
        own: Bytes of the host's memory that were its own; None if unknown.
        place: The line of the program that the main thread executed. Before it, the library
            function that it waited for, if any. Empty if unknown.
    """

    t_ns: int
    phase: str | None
    step: int | None
    cards: tuple[CardState, ...]
    own: int | None = None
    place: Stack = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The data that a rank wrote while it ran.

    Attributes:
        rank: Its rank, and how it ended, if recorded.
        name: The script's name.
        devices: Its cards, as far as it had used them.
        entries: The moments, in order.
        refusals: Requests that failed, in order.
        error: The exception that ended it, or None.
    """

    rank: Rank
    name: str
    devices: tuple[DeviceInfo, ...]
    entries: tuple[Entry, ...]
    refusals: tuple[Refusal, ...] = ()
    error: str | None = None


class JournalFile:
    """A journal file opened for writing.

    Each line is written to the kernel as a whole, immediately.

    Args:
        path: The file; it must not exist yet.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self._handle = os.open(path, flags, 0o666)

    def begin(self, rank: Rank, name: str) -> None:
        """Write the first line: the format, the name and the rank."""
        self._write({"journal": FORMAT, "name": name, "rank": rank_json(rank)})

    def add_card(self, info: DeviceInfo) -> None:
        """Write a card's properties, before entries refer to it."""
        self._write({"card": info_json(info)})

    def add(self, entry: Entry) -> None:
        """Write one entry."""
        self._write(
            {
                "t_ns": entry.t_ns,
                "phase": entry.phase,
                "step": entry.step,
                "cards": [
                    {
                        "index": card.index,
                        "allocated": card.allocated,
                        "reserved": card.reserved,
                        "peak": card.peak,
                        "known": dict(card.known),
                    }
                    for card in entry.cards
                ],
                "own": entry.own,
                "place": [[f.file, f.line, f.function] for f in entry.place],
            }
        )

    def add_refusal(self, refusal: Refusal) -> None:
        """Write a refused allocation request."""
        self._write({"refused": refusal_json(refusal)})

    def write_rank(self, rank: Rank, error: str | None = None) -> None:
        """Write the rank's current state, its end included."""
        self._write({"rank": rank_json(rank), "error": error})

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it if its session is whole."""
        with suppress(OSError):
            os.close(self._handle)
            if remove:
                self.path.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        os.write(self._handle, f"{json.dumps(line)}\n".encode("utf-8", "replace"))
