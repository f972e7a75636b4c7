"""Messages on ranks that write into a folder while a cell runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MOST_RANKS = 64
"""RanksNow of one message; of a larger world those with the highest peaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNow:
    """A rank's last line, at most a second old.

    Figures are None where it wrote none yet.

    Attributes:
        number: Its rank in the world.
        host: Its machine.
        state: `running`; `silent`, if it lives and has written nothing for ten seconds; `lost`, if
            its process is gone without a word; `finished` or `failed`; `ended`, if its session has
            not been looked into yet.
        phase: Where its training loop is (`forward`).
        step: Its step, from 0.
        card: Its card's name.
        total: Bytes of that card.
        allocated: Bytes in live blocks.
        reserved: Bytes held from the driver.
        peak: Highest `allocated` since it began.
        by_category: `allocated` by what is known of it: key, label, bytes. They add up to it; the
            last one is the rest. Empty where nothing is known.
        at: Where its main thread was: `in all_reduce, called at train.py:41`; None if unknown.
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
        t_ms: When they were read, milliseconds since the epoch.
        folder: Where they write.
        size: How many there are, as they say.
        ranks: Those that have written, MOST_RANKS at most.
        left_out: How many more have written.
    """

    t_ms: float
    folder: str
    size: int
    ranks: tuple[RankNow, ...]
    left_out: int
