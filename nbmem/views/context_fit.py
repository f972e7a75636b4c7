"""Render the longest contexts of a language model, by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.views.grid import Grid, TableCell, cells
from nbmem.views.language_model import render_answer_html, render_answer_text
from nbmem.views.model_estimate import capitalized

if TYPE_CHECKING:
    from nbmem.report.language_results import ContextFit, ContextRow

_SMALL = 16
"""Bytes a token below which a part is not shown."""


def render_text(fit: ContextFit) -> str:
    """Render the result for a terminal."""
    return render_answer_text((verdict(fit), *_about(fit)), (_rows(fit), _made_of(fit)))


def render_html(fit: ContextFit) -> str:
    """Render the result for a notebook's output."""
    sentences = (verdict(fit), *_about(fit))
    return render_answer_html(sentences, _rows(fit), _made_of(fit), fit.program)


def verdict(fit: ContextFit) -> str:
    """Return the answer in one sentence."""
    first, card = fit.rows[0], with_article(fit.card.name)
    title = fit.title if fit.title.endswith(".py") else capitalized(fit.title)
    sequences = f"{first.batch} sequence{'s' * (first.batch != 1)}"
    if first.seq is None:
        return f"{title} with {sequences} does not fit {card}, with {fit.step} tokens either."
    end = ", which is all that the model has positions for" if first.limited else ""
    return f"{title} with {sequences} fits {card} up to {first.seq:,} tokens{end}."


def _about(fit: ContextFit) -> Iterator[str]:
    each = sum(part.size for part in fit.per_token)
    largest = sorted(fit.per_token, key=lambda part: -part.size)[:2]
    named = " and ".join(f"{part.name} {format_bytes(part.size)}" for part in largest if part.size)
    if named:
        yield f"A token more of a sequence takes {format_bytes(each)}: {named}."
    row = fit.rows[0]
    if fit.per_pair and row.seq is not None:
        pairs = sum(part.size for part in fit.per_pair)
        yield (
            f"Each pair of tokens takes {pairs} B more (attention's scores or masks): "
            f"{format_bytes(pairs * row.seq**2 * row.batch)} at {row.seq:,} tokens."
        )
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
    """Return what is always there, and what a token and a pair of them take."""
    always = {part.name: part.size for part in fit.fixed}
    each = {part.name: part.size for part in fit.per_token if abs(part.size) >= _SMALL}
    pairs = {part.name: part.size for part in fit.per_pair}
    most = max(always.values(), default=0)
    names = sorted({*always, *each, *pairs}, key=lambda name: -always.get(name, 0))
    kept = [n for n in names if n in each or n in pairs or always[n] >= _MIN_SHARE * most]
    rows = [
        cells(
            name,
            format_bytes(always[name]) if name in always else "",
            f"{each[name]:,} B" if name in each else "",
            *([f"{pairs[name]:,} B" if name in pairs else ""] if pairs else []),
        )
        for name in kept
    ]
    sums = [f"{sum(each.values()):,} B", *([f"{sum(pairs.values()):,} B"] if pairs else [])]
    last = cells("= all tensors", format_bytes(sum(always.values())), *sums, strong=True)
    return Grid(
        title="What it is made of",
        head=("", "always", "each token", *(["each pair of tokens"] if pairs else [])),
        rows=(*rows, last),
    )


_MIN_SHARE = 0.001
"""Parts below this share of the largest are left out, if they do not grow."""
