"""Write what grows from step to step: a sentence for each holder, a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.views.markup import clipped, one_line, wrapped

if TYPE_CHECKING:
    from nbmem.report.exploration import GrowingHolder, StepGrowth
    from nbmem.report.model import Report

_WIDEST_NAME = 36
_MAX_LEFT = 1_000_000
"""Steps beyond which nobody waits for the card to be full."""


def name_of(holder: GrowingHolder) -> str:
    """Return what gains; a holder without a name is called so."""
    return one_line(holder.name or "what no name holds")


def sentence(holder: GrowingHolder) -> str:
    """Write by how much a holder grows, and the line that adds to it."""
    place = one_line(holder.line or "")
    code = f"`{one_line(holder.code)}`" if holder.code else ""
    where = ", ".join(filter(None, (code, place)))
    return f"{name_of(holder)} grows by {format_bytes(holder.slope)} a step" + (
        f": {where}" if where else ""
    )


def outlook(growth: StepGrowth) -> str:
    """Write when the card is full at this rate, and what is not shown."""
    sentences = []
    if growth.left is not None and growth.left < _MAX_LEFT:
        plural = "" if growth.left == 1 else "s"
        sentences.append(
            f"At this rate the card is full after about {growth.left:,} more step{plural}."
        )
    if growth.more:
        sentences.append(f"{growth.more} more holders grow.")
    return " ".join(sentences)


def growth_table(report: Report, width: int) -> str:
    """Write the holders that grow, and their bytes at the first and last step.

    Empty if nothing grows.
    """
    growth = report.growth
    if growth is None:
        return ""
    first, last = growth.steps[0], growth.steps[-1]
    heads = ("a step", f"after step {first}", f"after step {last}")
    rows: list[tuple[str, tuple[int | None, int, int], str]] = [
        (name_of(one), (one.slope, one.held[0], one.held[-1]), _source(one))
        for one in growth.holders
    ]
    rows.append(("all that is allocated", (None, growth.allocated[0], growth.allocated[-1]), ""))
    names = min(max(len(name) for name, *_ in rows), _WIDEST_NAME)
    figures = [
        [
            "" if count is None else format_bytes(count, signed=not at)
            for at, count in enumerate(row)
        ]
        for _, row, _ in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *figures, strict=True)]
    head = "Growth by step"
    lines = [_row(head, heads, "line", names, widths)]
    lines += [
        _row(f"  {clipped(name, names)}", texts, source, names, widths)
        for (name, _, source), texts in zip(rows, figures, strict=True)
    ]
    lines = [clipped(line, width) for line in lines]
    if sentences := outlook(growth):
        lines.append(wrapped(sentences, width, "  "))
    return "\n".join(lines)


def _source(holder: GrowingHolder) -> str:
    """Return a holder's line and its code."""
    return ": ".join(filter(None, map(one_line, (holder.line or "", holder.code))))


def _row(
    name: str, figures: tuple[str, ...] | list[str], source: str, names: int, widths: list[int]
) -> str:
    cells = [f"{text:>{width}}" for text, width in zip(figures, widths, strict=True)]
    return "  ".join((f"{name:<{names + 2}}", *cells, source)).rstrip()
