"""Result of the question on which cards a program runs: ready to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.report.estimate_results import CardFigures
    from nbmem.report.model import CardFit


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitableCards:
    """The cards on which a program would run as it is.

    Attributes:
        title: The cell's or script's name.
        card: The card whose run decided the others.
        allocated: Peak allocated bytes there, without a limit.
        process: Peak bytes of the process there.
        cards: The cards, the smallest first, and whether it would run there.
        sentences: What to know about it, one sentence each.
    """

    title: str
    card: CardFigures
    allocated: int
    process: int
    cards: tuple[CardFit, ...]
    sentences: tuple[str, ...] = ()
