"""A rank's journal: a line of JSON each second, so that a killed process loses no more than one.

The first line says whose it is, each other one what was held at that moment. A process may die
within a line, so a last one without its end is left out. When the session's own file is whole the
journal is taken away: it has nothing that the session lacks.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import FileFormatError
from nbmem.core.names import SENTENCE, shown
from nbmem.files.archive import plain_json
from nbmem.files.door import content
from nbmem.files.fields import Fields
from nbmem.files.head import frame_of, info_json, info_of, refusal_json, refusal_of
from nbmem.files.limits import Limits
from nbmem.files.ranks import rank_json, rank_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nbmem.core.events import Stack
    from nbmem.core.oom import Refusal
    from nbmem.core.session import DeviceInfo
    from nbmem.core.world import Rank

SUFFIX = ".journal"
_FORMAT = 1
_MOST_FRAMES = 2
_MOST_STEPS = 1 << 40
_AT_ONCE = 1 << 20
"""Bytes of one look at a journal that grows by some hundred a second, and of one line at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardNow:
    """What a process held of one card at a moment; None where nobody knew.

    Attributes:
        index: CUDA ordinal.
        allocated: Bytes in live blocks.
        reserved: Bytes held from the driver.
        peak: Highest allocated bytes until then, as torch's own counter has it.
        known: Bytes by the key of their category, as far as hooks had seen them.
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
        phase, step: What the training loop was at; None outside of one.
        cards: The cards that it used.
        place: The line of the program that the main thread was at, and before it the function of a
            library that it waited for, if it did; empty where nobody saw it.
    """

    t_ns: int
    phase: str | None
    step: int | None
    cards: tuple[CardNow, ...]
    place: Stack = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a rank wrote while it ran.

    Attributes:
        rank: Whose it is; with how it ended, if it said so.
        name: The script's name.
        devices: Its cards, as far as it had used them.
        entries: The moments, in order.
        refusals: Requests that could not be served, in order.
        error: The exception that ended it, or None.
    """

    rank: Rank
    name: str
    devices: tuple[DeviceInfo, ...]
    entries: tuple[Entry, ...]
    refusals: tuple[Refusal, ...] = ()
    error: str | None = None


class JournalFile:
    """A journal that is being written: each line goes to the kernel whole, at once.

    Args:
        path: The file; it must not be there yet.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)

    def begin(self, rank: Rank, name: str) -> None:
        """Say whose it is."""
        self._write({"journal": _FORMAT, "name": name, "rank": rank_json(rank)})

    def add_card(self, info: DeviceInfo) -> None:
        """Say what a card is, before it is first spoken of."""
        self._write({"card": info_json(info)})

    def add(self, entry: Entry) -> None:
        """Write one moment."""
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
                "place": [[f.file, f.line, f.function] for f in entry.place],
            }
        )

    def add_refusal(self, refusal: Refusal) -> None:
        """Write a request that could not be served."""
        self._write({"refused": refusal_json(refusal)})

    def say(self, rank: Rank, error: str | None = None) -> None:
        """Say what is known of the rank now, its end included."""
        self._write({"rank": rank_json(rank), "error": error})

    def close(self, *, remove: bool) -> None:
        """Let go of the file, and take it away if its session is whole."""
        with suppress(OSError):
            os.close(self._handle)
            if remove:
                self.path.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        os.write(self._handle, f"{json.dumps(line)}\n".encode("utf-8", "replace"))


def read_journal(path: str | Path, limits: Limits | None = None) -> Journal:
    """Read what a rank wrote, also while it still writes.

    Raises:
        UsageError: There is no such file.
        FileFormatError: It is no journal.
    """
    limits = limits or Limits()
    told = _JournalLines(path, limits)
    told.take(content(path, limits))
    return told.journal()


class JournalTail:
    """A journal that is read again and again while its rank writes: only what is new of it.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._told = _JournalLines(path, Limits())

    def now(self) -> Journal | None:
        """What it says by now, of its moments the last alone; None before its first line is whole.

        Raises:
            OSError: It is gone: its session is whole, or somebody took it away.
            FileFormatError: It is no journal.
        """
        with self._path.open("rb") as file:
            file.seek(self._read)
            new = file.read(_AT_ONCE)
        self._read += len(new)
        self._told.take(new)
        del self._told.entries[:-1]
        return self._told.journal() if self._told.begun else None


class _JournalLines:
    """What the lines of a journal have said, taken piece by piece.

    Args:
        path: The file, for messages.
        limits: How large a line may be.
    """

    def __init__(self, path: str | Path, limits: Limits) -> None:
        self.begun = False
        self.entries: list[Entry] = []
        self._path, self._limits = path, limits
        self._half = b""
        self._rank: Rank
        self._name = ""
        self._error: str | None = None
        self._devices: dict[int, DeviceInfo] = {}
        self._refusals: list[Refusal] = []

    def take(self, data: bytes) -> None:
        """Take what follows; behind the last line's end is half a line, which waits for the rest.

        Raises:
            FileFormatError: It is no journal.
        """
        *lines, self._half = (self._half + data).split(b"\n")
        if len(self._half) > _AT_ONCE:
            raise self._no_journal("a line of it has no end")
        try:
            for line in lines:
                row = Fields(plain_json(line, "a line", self._limits), "a line of it")
                (self._take if self.begun else self._begin)(row)
        except (FileFormatError, ValueError, RecursionError) as err:
            raise self._no_journal(err) from None

    def journal(self) -> Journal:
        """All of it.

        Raises:
            FileFormatError: There is no line yet.
        """
        if not self.begun:
            raise self._no_journal("its first line does not say whose it is")
        return Journal(
            rank=self._rank,
            name=self._name,
            devices=tuple(self._devices.values()),
            entries=tuple(self.entries),
            refusals=tuple(self._refusals),
            error=self._error,
        )

    def _begin(self, row: Fields) -> None:
        if row.maybe(row.number, "journal") != _FORMAT:
            raise FileFormatError("its first line does not say whose it is")
        self._rank, self._name = rank_of(row.object("rank")), row.text("name")
        self.begun = True

    def _take(self, row: Fields) -> None:
        if card := row.object("card"):
            info = info_of(card)
            self._devices[info.index] = info
        elif now := row.object("rank"):
            self._rank = rank_of(now)
            self._error = row.maybe(partial(row.text, most=SENTENCE), "error")
        elif refused := row.object("refused"):
            self._refusals.append(refusal_of(refused))
        else:
            self.entries.append(_entry(row))

    def _no_journal(self, why: object) -> FileFormatError:
        return FileFormatError(
            f"{self._path} is not the journal of a rank: {why}. It may be of another program."
        )


def _entry(row: Fields) -> Entry:
    return Entry(
        t_ns=row.time("t_ns"),
        phase=row.maybe(row.text, "phase"),
        step=row.maybe(lambda name: row.number(name, _MOST_STEPS), "step"),
        cards=tuple(_card_now(raw) for raw in row.items("cards")),
        place=tuple(frame_of(raw) for raw in row.items("place")[:_MOST_FRAMES]),
    )


def _card_now(raw: Any) -> CardNow:
    card = Fields(raw, "a card in a line of it")
    known = Fields(card.object("known"), "what is known in a line of it")
    return CardNow(
        index=card.number("index", 1023),
        allocated=card.count("allocated"),
        reserved=card.count("reserved"),
        peak=card.count("peak"),
        known={shown(key): known.count(key) for key in card.object("known")},
    )
