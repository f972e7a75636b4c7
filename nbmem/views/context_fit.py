"""Render the longest contexts of a language model, by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.code_block import code_html
from nbmem.views.grid import Grid, TableCell, cells
from nbmem.views.html import page
from nbmem.views.markup import element, wrapped
from nbmem.views.mime_bundle import WIDTH
from nbmem.views.model_estimate import capitalized
from nbmem.views.notes_html import fold, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.report.language_results import ContextFit, ContextRow

_SMALL = 16
"""Bytes a token below which a part is not shown."""


def render_text(fit: ContextFit) -> str:
    """Render the result for a terminal."""
    return "\n\n".join(
        [
            "\n".join(wrapped(one, WIDTH) for one in (verdict(fit), *_about(fit))),
            _rows(fit).text(),
            _made_of(fit).text(),
        ]
    )


def render_html(fit: ContextFit) -> str:
    """Render the result for a notebook's output."""
    return element(
        "div",
        element("div", verdict(fit), style=style.VERDICT),
        listed(_about(fit)),
        element(
            "div",
            element("div", _rows(fit).html(), style=style.CHARTS),
            element("div", _made_of(fit).html(), style=style.TABLES),
            style=style.COLUMNS,
        ),
        fold("The program that was run", code_html(fit.program)),
        style=style.BOX,
    )


def render_page(fit: ContextFit) -> str:
    """Render the result as a whole HTML document."""
    return page(fit.title, render_html(fit))


def mimebundle(fit: ContextFit) -> dict[str, str]:
    """Return text and HTML as a MIME bundle."""
    return {"text/plain": render_text(fit), "text/html": render_html(fit)}


def verdict(fit: ContextFit) -> str:
    """Return the answer in one sentence."""
    first, card = fit.rows[0], with_article(fit.card.name)
    title = capitalized(fit.title)
    sequences = f"{first.batch} sequence{'s' * (first.batch != 1)}"
    if first.seq is None:
        return f"{title} with {sequences} does not fit {card}, with {fit.step} tokens either."
    end = ", which is all that the model has positions for" if first.limited else ""
    return f"{title} with {sequences} fits {card} up to {first.seq:,} tokens{end}."


def _about(fit: ContextFit) -> Iterator[str]:
    each = sum(part.size for part in fit.per_token)
    largest = sorted(fit.per_token, key=lambda part: -part.size)[:2]
    named = " and ".join(f"{part.name} {format_bytes(part.size)}" for part in largest)
    if named:
        yield f"A token more of a sequence takes {format_bytes(each)}: {named}."
    yield (
        f"Lengths in steps of {fit.step}; {fit.runs} were run, and {fit.replayed} decided by "
        "replaying their requests in the simulated allocator."
    )
    yield f"{fit.card.kept} {fit.card.share}".strip()
    yield from fit.sentences


def _rows(fit: ContextFit) -> Grid:
    return Grid(
        title="The longest context that fits",
        head=("batch", "tokens each", "tokens in all", "process"),
        rows=tuple(_row(row) for row in fit.rows),
        left=frozenset(),
    )


def _row(row: ContextRow) -> tuple[TableCell, ...]:
    if row.seq is None:
        return cells(f"{row.batch}", "none", "", "")
    end = "" if row.process is None else format_bytes(row.process)
    mark = " (all)" * row.limited
    return cells(f"{row.batch}", f"{row.seq:,}{mark}", f"{row.batch * row.seq:,}", end)


def _made_of(fit: ContextFit) -> Grid:
    """Return what is always there, and what a token takes."""
    always = {part.name: part.size for part in fit.fixed}
    each = {part.name: part.size for part in fit.per_token if abs(part.size) >= _SMALL}
    names = sorted({*always, *each}, key=lambda name: -always.get(name, 0))
    kept = [n for n in names if n in each or always[n] >= _LEAST * max(always.values())]
    total = f"{sum(each.values()):,} B"
    rows = [
        cells(
            name,
            format_bytes(always[name]) if name in always else "",
            f"{each[name]:,} B" if name in each else "",
        )
        for name in kept
    ]
    last = cells("= all tensors", format_bytes(sum(always.values())), total, strong=True)
    return Grid(
        title="What it is made of",
        head=("", "always", "each token"),
        rows=(*rows, last),
    )


_LEAST = 0.001
"""Parts below this share of the largest are left out, if they do not grow."""
