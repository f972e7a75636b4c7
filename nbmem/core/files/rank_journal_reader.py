"""Read a rank's journal, whole or incrementally while it grows.

A process may end within a line, so an incomplete last line is ignored.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import FileFormatError
from nbmem.core.files.archive import plain_json
from nbmem.core.files.header import frame_of, info_of, refusal_of
from nbmem.core.files.json_fields import Fields
from nbmem.core.files.rank_journal import FORMAT, CardState, Entry, Journal
from nbmem.core.files.rank_json import rank_of
from nbmem.core.files.size_limits import Limits
from nbmem.core.files.untrusted_input import read_content
from nbmem.core.session.tensor_names import SENTENCE, printable_text

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session.oom import Refusal
    from nbmem.core.session.ranks import Rank
    from nbmem.core.session.session import DeviceInfo

_MAX_FRAMES = 2
_MAX_STEPS = 1 << 40
_AT_ONCE = 1 << 20
"""Bytes of one read of a journal that grows by some hundred a second, and limit of one line."""


def read_journal(path: str | Path, limits: Limits | None = None) -> Journal:
    """Read a rank's journal, also while the rank still writes it.

    Raises:
        UsageError: There is no such file.
        FileFormatError: It is no journal.
    """
    limits = limits or Limits()
    parsed = _JournalLines(path, limits)
    parsed.feed(read_content(path, limits))
    return parsed.journal()


class JournalTail:
    """A reader of a journal that is still written, which reads only new lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._parsed = _JournalLines(path, Limits())

    def latest(self) -> Journal | None:
        """Read the new lines; return the journal with its latest entry alone.

        The result is None before the first line is complete.

        Raises:
            OSError: It was removed: its session is complete, or a user removed it.
            FileFormatError: It is no journal.
        """
        with self._path.open("rb") as file:
            file.seek(self._read)
            new = file.read(_AT_ONCE)
        self._read += len(new)
        self._parsed.feed(new)
        del self._parsed.entries[:-1]
        return self._parsed.journal() if self._parsed.begun else None


class _JournalLines:
    """A parser of a journal's lines that accepts data piece by piece."""

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

    def feed(self, data: bytes) -> None:
        """Parse more data, and keep an incomplete last line for the next call.

        Raises:
            FileFormatError: It is no journal.
        """
        *lines, self._half = (self._half + data).split(b"\n")
        if len(self._half) > _AT_ONCE:
            raise self._no_journal("a line of it has no end")
        try:
            for line in lines:
                row = Fields(plain_json(line, "a line", self._limits), "a line of it")
                (self._add_row if self.begun else self._begin)(row)
        except (FileFormatError, ValueError, RecursionError) as err:
            raise self._no_journal(err) from None

    def journal(self) -> Journal:
        """Return the journal that was read so far.

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
        if row.maybe(row.number, "journal") != FORMAT:
            raise FileFormatError("its first line does not say whose it is")
        self._rank, self._name = rank_of(row.object("rank")), row.text("name")
        self.begun = True

    def _add_row(self, row: Fields) -> None:
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
        step=row.maybe(lambda name: row.number(name, _MAX_STEPS), "step"),
        cards=tuple(_card_now(raw) for raw in row.items("cards")),
        own=row.maybe(row.count, "own"),
        place=tuple(frame_of(raw) for raw in row.items("place")[:_MAX_FRAMES]),
    )


def _card_now(raw: Any) -> CardState:
    card = Fields(raw, "a card in a line of it")
    known = Fields(card.object("known"), "what is known in a line of it")
    return CardState(
        index=card.number("index", 1023),
        allocated=card.count("allocated"),
        reserved=card.count("reserved"),
        peak=card.count("peak"),
        known={printable_text(key): known.count(key) for key in card.object("known")},
    )
