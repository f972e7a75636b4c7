"""Draw the whole card at the peak as a bar, with this process enlarged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.categories import PROCESS, RESERVED, Category
from nbmem.core.units import format_bytes
from nbmem.views import report_sentences
from nbmem.views.charts.svg import WIDTH, Picture, box, fill, label, line, picture, text_width
from nbmem.views.markup import Markup, element
from nbmem.views.palette import INK

if TYPE_CHECKING:
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.model import Report

_LEFT, _RIGHT = 8, WIDTH - 8
_ROOM = _RIGHT - _LEFT
_CARD_TOP, _CARD = 24, 20
_ZOOM_TOP, _ZOOM = 78, 30
_NAMES_TOP, _NAMES = _ZOOM_TOP + _ZOOM, 32
_MIN_NAMED = 12
"""A segment narrower than this many pixels is shown only in the table."""


def card_bar(report: Report) -> Picture:
    """Draw the card at the recording's peak."""
    ledger = report.ledger_at_peak
    # Without a process figure, context may include other processes: enlarge the reserved bytes.
    mine = PROCESS if ledger.process_known else RESERVED
    held = sum(ledger[c] for c in mine)
    total = max(ledger.total_bytes, 1)
    who = "this process" if ledger.process_known else "reserved by torch"
    edge = _LEFT + _ROOM * held / total
    share = report_sentences.percent(held, total)
    parts = [
        label(_LEFT, 15, f"{_whole(report)} at the peak: {format_bytes(total)}", bold=True),
        *_segments(ledger, tuple(Category), total, _CARD_TOP, _CARD),
        *_free_label(report, total),
    ]
    if not held:
        return picture(parts, bottom=_CARD_TOP + _CARD + 10, alt=_alt(report, who, held))
    names, bottom = _names(report, mine, held)
    parts += [
        element(
            "path",
            d=f"M{_LEFT} {_CARD_TOP + _CARD + 1}L{_LEFT} {_ZOOM_TOP - 1}H{_RIGHT}"
            f"L{round(max(edge, _LEFT + 1))} {_CARD_TOP + _CARD + 1}z",
            fill=INK,
            fill_opacity="0.14",
        ),
        label(_LEFT + 6, _ZOOM_TOP - 9, f"{who}: {format_bytes(held)}, {share} of it", bold=True),
        *_segments(ledger, mine, held, _ZOOM_TOP, _ZOOM),
        *names,
    ]
    return picture(parts, bottom=bottom, alt=_alt(report, who, held))


def _segments(
    ledger: Ledger, shown: Sequence[Category], whole: int, top: int, height: int
) -> list[Markup]:
    parts = [
        box(_LEFT, top, _ROOM, height, fill="none", stroke=INK, stroke_opacity="0.6"),
    ]
    before = 0
    for category in shown:
        if category is Category.FREE or not ledger[category]:
            before += ledger[category]
            continue
        left, width = _LEFT + _ROOM * before / whole, _ROOM * ledger[category] / whole
        parts.append(box(left, top, width, height, fill=fill(category)))
        before += ledger[category]
    return parts


def _free_label(report: Report, total: int) -> list[Markup]:
    count = report.ledger_at_peak[Category.FREE]
    text = f"{report_sentences.label(Category.FREE, kind=report.device.kind)} {format_bytes(count)}"
    room = _ROOM * count / total
    if room < text_width(text) + 12:
        return [label(_RIGHT, 15, text, anchor="end")]
    return [label(_RIGHT - 8, _CARD_TOP + 15, text, anchor="end")]


def _whole(report: Report) -> str:
    return "The machine" if report.device.is_host else "The card"


def _names(report: Report, shown: Sequence[Category], whole: int) -> tuple[list[Markup], int]:
    """Draw names and bytes below the segments, in up to two rows.

    The largest come first. Returns the parts and their bottom edge.
    """
    ledger = report.ledger_at_peak
    middles: list[tuple[int, Category, float]] = []
    before = 0
    for category in shown:
        middle = _LEFT + _ROOM * (before + ledger[category] / 2) / whole
        middles.append((ledger[category], category, middle))
        before += ledger[category]
    parts: list[Markup] = []
    rows: list[list[tuple[float, float]]] = [[], []]
    for count, category, middle in sorted(middles, key=lambda item: -item[0]):
        if _ROOM * count < _MIN_NAMED * whole:
            break
        name = report_sentences.label(category, ledger, kind=report.device.kind)
        half = max(text_width(name, 12), text_width(format_bytes(count), 12)) / 2
        at = min(max(middle, _LEFT + half), _RIGHT - half)
        row = _row_with_room(rows, at - half, at + half, middle)
        if row is None:
            continue
        rows[row].append((at - half, at + half))
        top = _NAMES_TOP + row * _NAMES
        if row:
            parts.append(
                line(middle, _NAMES_TOP, middle, top + 2, stroke=INK, stroke_opacity="0.6")
            )
        parts.append(label(at, top + 15, name, anchor="middle", size=12))
        parts.append(label(at, top + 29, format_bytes(count), anchor="middle", size=12))
    return parts, _NAMES_TOP + _NAMES * (2 if rows[1] else 1) + 4


def _row_with_room(
    rows: list[list[tuple[float, float]]], left: float, right: float, middle: float
) -> int | None:
    for index, taken in enumerate(rows):
        # The line down to the second row must not cross a name in the first row.
        crossed = index and any(a - 3 < middle < b + 3 for a, b in rows[0])
        if not crossed and not any(left < b + 6 and right > a - 6 for a, b in taken):
            return index
    return None


def _alt(report: Report, who: str, held: int) -> str:
    ledger, kind = report.ledger_at_peak, report.device.kind
    parts = ", ".join(
        f"{report_sentences.label(c, ledger, kind=kind)} {format_bytes(ledger[c])}"
        for c in Category
        if ledger[c]
    )
    total = format_bytes(ledger.total_bytes)
    return f"{_whole(report)} at the peak: {who} holds {format_bytes(held)} of {total}. {parts}."
