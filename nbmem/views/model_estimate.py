"""Render what a language model takes under a method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.views.card_choice import cards_table
from nbmem.views.grid import Grid, TableCell
from nbmem.views.language_model import render_answer_html, render_answer_text

if TYPE_CHECKING:
    from nbmem.report.language_results import ModelEstimate

_BAR = 24
"""Characters of the longest bar."""


def render_text(estimate: ModelEstimate, *, program: bool = False) -> str:
    """Render the result for a terminal.

    Args:
        estimate: The result.
        program: Whether to show the program, too.
    """
    tables = (_parts(estimate, bars=True), cards_table(estimate.cards))
    shown = estimate.program if program else ""
    return render_answer_text((verdict(estimate), *_about(estimate)), tables, shown)


def render_html(estimate: ModelEstimate) -> str:
    """Render the result for a notebook's output."""
    parts, cards = _parts(estimate, bars=False), cards_table(estimate.cards)
    sentences = (verdict(estimate), *_about(estimate))
    return render_answer_html(sentences, parts, cards, estimate.program)


def verdict(estimate: ModelEstimate) -> str:
    """Return the answer in one sentence."""
    card = estimate.card
    takes = f"{capitalized(estimate.title)} takes {format_bytes(estimate.process)}"
    where = f"of the {format_bytes(card.total + card.driver)} of {with_article(card.name)}"
    own = next((one for one in estimate.cards if one.total == card.total + card.driver), None)
    if estimate.fits:
        if own is not None and own.releases:
            return f"{takes} {where} where there is more; it fits, as torch releases its cache."
        return f"{takes} {where}: it fits."
    if estimate.fits is None:
        return f"{takes} {where}."
    if own is not None and own.fits:
        return f"{takes} {where}: it only just fits, with less than the margin to spare."
    return f"{takes}, more than a process gets {where}."


def _about(estimate: ModelEstimate) -> Iterator[str]:
    trained = f", {count(estimate.trained)} of them trained" if estimate.trained else ""
    if estimate.trained == estimate.parameters:
        trained = ", all of them trained"
    many = f"{estimate.batch} sequence{'s' * (estimate.batch != 1)}"
    yield (
        f"{count(estimate.parameters)} parameters{trained}; {many} of {estimate.seq:,} tokens at a "
        f"time. Most is allocated in {estimate.phase}."
    )
    smallest = next((one for one in estimate.cards if one.fits and one.margin), None)
    if smallest is not None:
        yield f"The smallest of the cards below on which it fits: {smallest.card}."
    yield from estimate.sentences


def capitalized(title: str) -> str:
    """Return a title as the beginning of a sentence."""
    return title[:1].upper() + title[1:]


def count(number: int) -> str:
    """Format a number of parameters: `3.21 billion`."""
    for unit, size in (("billion", 10**9), ("million", 10**6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


def _parts(estimate: ModelEstimate, *, bars: bool) -> Grid:
    """Return the table of what is on the card at the peak."""
    most = max((part.size for part in estimate.parts), default=1)
    cached = estimate.reserved - estimate.allocated
    beside = estimate.process - estimate.reserved
    sums = (
        ("= allocated", estimate.allocated, True),
        ("cached by torch", cached, False),
        ("context and libraries", beside, False),
        ("= process, as in nvidia-smi", estimate.process, True),
    )
    listed_parts = sorted(estimate.parts, key=lambda part: -part.size)
    small = [part for part in listed_parts if part.size < estimate.allocated * _SMALL]
    shown = [part for part in listed_parts if part not in small]
    rows = [(part.name, part.size, False) for part in shown]
    if small:
        rows.append(("other", sum(part.size for part in small), False))
    return Grid(
        title="On the card at the peak",
        head=("", "bytes", ""),
        rows=tuple(_part(row, most=most, bars=bars) for row in (*rows, *sums)),
        left=frozenset({0, 2}),
    )


_SMALL = 0.001
"""Parts below this share of what is allocated stand in one line."""


def _part(row: tuple[str, int, bool], *, most: int, bars: bool) -> tuple[TableCell, ...]:
    """Return the cells of a name, its bytes, and whether it is a sum."""
    name, size, strong = row
    share = 0.0 if strong else min(size / most, 1)
    bar = "#" * max(1, round(share * _BAR)) if bars and share else ""
    return (
        TableCell(text=name, strong=strong),
        TableCell(text=format_bytes(size), exact=f"{size:,} B", share=share, strong=strong),
        TableCell(text=bar),
    )
