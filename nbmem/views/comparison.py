"""Render two runs, cells or steps side by side, as text, HTML and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nbmem.core.session.categories import ACTIVE
from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.charts.overlay import overlay
from nbmem.views.grid import in_columns
from nbmem.views.html import page
from nbmem.views.markup import Markup, clipped, element, one_line

if TYPE_CHECKING:
    from nbmem.report.analysis.compare import Change, Comparison

MAX_CHANGES = 12
"""Changes of one kind that are listed; the others are summed up."""
_KINDS = (
    ("category", "Categories at the peak"),
    ("holder", "Holders at the peak"),
    ("line", "Lines that allocated what lived at the peak"),
)
_ALLOCATED = {category.label for category in ACTIVE}
_SAME = "Both sides hold the same at their peaks."


def render_comparison(comparison: Comparison, *, width: int = 100) -> str:
    """Write what changed, the largest change first."""
    a, b = one_line(comparison.a.label), one_line(comparison.b.label)
    blocks = [
        in_columns([("", "A", "B", "change"), *_figures(comparison)]),
        *(
            in_columns([(head, "A", "B", "change"), *rows])
            for head, rows in _tables(comparison, width)
        ),
    ]
    if not comparison.changes:
        blocks.append(_SAME)
    notes = [f"- {note}" for note in comparison.notes]
    return "\n\n".join(
        [_verdict(comparison), f"A = {a}\nB = {b}", *blocks, *(["\n".join(notes)] if notes else [])]
    )


def render_comparison_html(comparison: Comparison) -> str:
    """Draw a comparison for a notebook: both timelines, then what changed."""
    drawn = overlay(comparison)
    picture = [element("div", drawn.image(style.PICTURE), style=style.SCROLL)] if drawn else []
    heads = ("", "A", "B", "change")
    tables = [
        _html_table("Totals", [heads, *_figures(comparison)]),
        *(_html_table(head, [heads, *rows]) for head, rows in _tables(comparison, 120)),
    ]
    sentences = [element("div", note, style=style.ABOUT) for note in comparison.notes]
    if not comparison.changes:
        sentences.insert(0, element("div", _SAME))
    first = element("div", _verdict(comparison), style=style.VERDICT)
    sides = [
        element("div", f"{letter} = {one_line(side.label)}", style=style.LONG)
        for letter, side in (("A", comparison.a), ("B", comparison.b))
    ]
    return element("div", first, *sides, *picture, *tables, *sentences, style=style.BOX)


def render_comparison_page(comparison: Comparison) -> str:
    """Draw a comparison as a page of its own."""
    title = f"{one_line(comparison.a.label)} against {one_line(comparison.b.label)}"
    return page(title, render_comparison_html(comparison))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as a JSON object; amounts are bytes.

    Keys are added in later versions, never renamed or removed.
    """
    sides = {
        name: {
            "label": side.label,
            "peak_allocated": side.allocated,
            "peak_reserved": side.reserved,
            "allocated_at_end": side.left,
        }
        for name, side in (("a", comparison.a), ("b", comparison.b))
    }
    changes = [
        {"kind": c.kind, "name": c.name, "a": c.a, "b": c.b, "change": c.change}
        for c in comparison.changes
    ]
    return {**sides, "changes": changes, "notes": list(comparison.notes)}


def _verdict(comparison: Comparison) -> str:
    """Say in one sentence which side peaks higher, and by what most of all."""
    a, b = comparison.a.allocated, comparison.b.allocated
    if a == b:
        return f"Both sides peak at {format_bytes(a)} allocated."
    way = "higher" if b > a else "lower"
    sentences = (
        f"B peaks {format_bytes(abs(b - a))} {way} than A: {format_bytes(b)}, not {format_bytes(a)}"
    )
    most = next(
        (
            change
            for change in comparison.changes
            if change.kind == "category"
            and change.name in _ALLOCATED
            and (change.change > 0) == (b > a)
        ),
        None,
    )
    if most is None:
        return f"{sentences}."
    return f"{sentences}. Largest difference: {most.name}, {_signed(most.change)}."


def _figures(comparison: Comparison) -> list[tuple[str, ...]]:
    a, b = comparison.a, comparison.b
    return [
        (name, format_bytes(x), format_bytes(y), _signed(y - x))
        for name, x, y in (
            ("peak allocated", a.allocated, b.allocated),
            ("peak reserved", a.reserved, b.reserved),
            ("left at the end", a.left, b.left),
        )
    ]


def _tables(comparison: Comparison, width: int) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    for kind, head in _KINDS:
        mine = [change for change in comparison.changes if change.kind == kind]
        if not mine:
            continue
        rows = [_row(change, width) for change in mine[:MAX_CHANGES]]
        if rest := mine[MAX_CHANGES:]:
            change = sum(one.change for one in rest)
            rows.append((f"{len(rest)} smaller changes", "", "", _signed(change)))
        yield head, rows


def _row(change: Change, width: int) -> tuple[str, ...]:
    name = one_line(change.name)
    most = max(20, width - 50)
    return (
        f"  {clipped(name, most)}",
        format_bytes(change.a),
        format_bytes(change.b),
        _signed(change.change),
    )


def _signed(count: int) -> str:
    return format_bytes(count, signed=True) if count else "same"


def _html_table(caption: str, rows: list[tuple[str, ...]]) -> Markup:
    """Draw a table whose figures go below the name where it is narrow.

    Roles are written out: rows that flow are no table to a screen reader otherwise.
    """
    head, *body = rows
    return element(
        "table",
        element("caption", caption, style=f"{style.CAPTION};{style.FLOWING_PART}"),
        element("thead", _html_row(head, "th"), role="rowgroup", style=style.FLOWING_PART),
        element(
            "tbody", *(_html_row(row) for row in body), role="rowgroup", style=style.FLOWING_PART
        ),
        role="table",
        style=style.FLOWING,
    )


def _html_row(row: tuple[str, ...], cell: str = "td") -> Markup:
    """Draw a row: a name, and its figures."""
    name, *figures = map(one_line, row)
    heads = {"role": "columnheader", "scope": "col"}
    of_name = heads if cell == "th" else {"role": "rowheader", "scope": "row"}
    of_figure = heads if cell == "th" else {"role": "cell"}
    return element(
        "tr",
        element("th", name.strip(), **of_name, style=style.FLOWING_NAME),
        *(element(cell, figure, **of_figure, style=style.FLOWING_FIGURE) for figure in figures),
        role="row",
        style=style.FLOWING_ROW,
    )
