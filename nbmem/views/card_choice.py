"""Render the cards on which a program would run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.grid import Grid, cells
from nbmem.views.markup import element, wrapped
from nbmem.views.mime_bundle import WIDTH
from nbmem.views.notes_html import listed
from nbmem.views.would_run_on import UNKNOWN_KERNELS, verdict_on

if TYPE_CHECKING:
    from nbmem.report.card_choice import SuitableCards
    from nbmem.report.model import CardFit


def render_text(choice: SuitableCards) -> str:
    """Render the result for a terminal."""
    about = (verdict(choice), *_about(choice))
    lines = "\n".join(wrapped(one, WIDTH) for one in about)
    return f"{lines}\n\n{cards_table(choice.cards).text()}"


def render_html(choice: SuitableCards) -> str:
    """Render the result for a notebook's output."""
    return element(
        "div",
        element("div", verdict(choice), style=style.VERDICT),
        listed(_about(choice)),
        cards_table(choice.cards).html(),
        style=style.BOX,
    )


def verdict(choice: SuitableCards) -> str:
    """Return the answer in one sentence."""
    fits = [one for one in choice.cards if one.fits and one.margin]
    if not fits:
        return f"{choice.title} fits none of the {len(choice.cards)} cards that nbmem knows."
    first = fits[0]
    return (
        f"{choice.title} fits {len(fits)} of the {len(choice.cards)} cards that nbmem knows. The "
        f"smallest is {first.card}, with {format_bytes(first.total)}."
    )


def _about(choice: SuitableCards) -> list[str]:
    takes = f"On {with_article(choice.card.name)} it takes {format_bytes(choice.process)} as it is."
    return [takes, UNKNOWN_KERNELS, *choice.sentences]


def cards_table(found: tuple[CardFit, ...]) -> Grid:
    """Return cards as a table: what fits, the smallest first, then the rest."""
    fits = [one for one in found if one.fits]
    short = [one for one in reversed(found) if not one.fits]
    return Grid(
        title="Would it run on another card?",
        head=("card", "memory", "", "known"),
        rows=tuple(
            cells(
                one.card,
                format_bytes(one.total),
                verdict_on(one),
                "exactly" if one.exact else "estimate",
                strong=bool(one.fits and one.margin),
            )
            for one in (*fits, *short)
        ),
        left=frozenset({0, 2, 3}),
    )
