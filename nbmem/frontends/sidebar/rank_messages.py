"""Messages on ranks that write into a folder while a cell runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MOST_RANKS = 64
"""Ranks of one message; of a larger world those with the highest peaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNow:
    """A rank's last line, at most a second old.

    Figures are None if it has not written any.

    Attributes:
        number: Its rank in the world.
        host: Its machine.
        state: `running`; `silent` if it is alive and has written nothing for ten seconds; `lost` if
            its process ended without a record; `finished` or `failed`; `ended` if its session has
            not been read yet.
        phase: Current phase of its training loop (`forward`).
        step: Its step, from 0.
        card: Its card's name.
        total: Bytes of that card.
        allocated: Bytes in live blocks.
        reserved: Bytes held from the driver.
        peak: Highest `allocated` since it began.
        by_category: `allocated` by category: key, label, bytes. They add up to it; the last one is
            the rest. Empty if nothing is known.
        at: Location of its main thread: `in all_reduce, called at train.py:41`; None if unknown.
        error: The exception that ended it.
    """

    number: int
    host: str
    state: Literal["running", "silent", "lost", "ended", "finished", "failed"]
    phase: str | None
    step: int | None
    card: str | None
    total: int | None
    allocated: int | None
    reserved: int | None
    peak: int | None
    by_category: tuple[tuple[str, str, int], ...]
    at: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksNow:
    """The ranks that a cell has started, by number. Pushed on change.

    Attributes:
        t_ms: Time of the reading, milliseconds since the epoch.
        folder: The folder that they write into.
        size: World size, as the ranks report it.
        ranks: Ranks that have written, MOST_RANKS at most.
        left_out: Number of further ranks that have written.
    """

    t_ms: float
    folder: str
    size: int
    ranks: tuple[RankNow, ...]
    left_out: int
