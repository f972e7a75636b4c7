"""A figure that others measured, beside what the virtual card says, and sums over many of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STEP = 2 << 20
"""The allocator's smallest segment, and the step of nvidia-smi's figures."""
HEAD = (
    "| card | source | figure | rows | within 2 MiB | median difference | largest | why |",
    "|---|---|---|--:|--:|--:|--:|---|",
)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One figure of others and the virtual card's.

    Attributes:
        name: What was run.
        card: The card that ran it.
        measured: Their figure, in bytes.
        said: The virtual card's, in bytes.
        error: Why it could not be run; "" if it did.
    """

    name: str
    card: str
    measured: int
    said: int = 0
    error: str = ""

    @property
    def share(self) -> float:
        """Return the difference in percent of what was measured."""
        return 100 * (self.said - self.measured) / self.measured


def summary(source: str, figure: str, why: str, rows: Iterable[Compared]) -> list[str]:
    """Format one line of the table for each card."""
    by_card: dict[str, list[Compared]] = {}
    for row in rows:
        if not row.error:
            by_card.setdefault(row.card, []).append(row)
    return [_line(card, source, figure, why, found) for card, found in by_card.items()]


def _line(card: str, source: str, figure: str, why: str, rows: Sequence[Compared]) -> str:
    within = sum(abs(row.said - row.measured) <= STEP for row in rows)
    median = statistics.median(abs(row.share) for row in rows)
    worst = max((row.share for row in rows), key=abs)
    return (
        f"| {card} | {source} | {figure} | {len(rows)} | {within} | {median:.2f}% "
        f"| {worst:+.2f}% | {why} |"
    )


def details(rows: Iterable[Compared]) -> list[str]:
    """Format one line for each row."""
    return [
        f"{row.card:12s} {row.name:48s} {row.measured:16,d} "
        + (row.error or f"{row.said:16,d} {row.share:+8.3f}%")
        for row in rows
    ]
