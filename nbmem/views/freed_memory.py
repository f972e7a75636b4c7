"""Render what an action freed beside its prediction, as text and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.holders import HolderKind, Root
from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.markup import Markup, element, one_line

if TYPE_CHECKING:
    from nbmem.core.freed_memory import Freed

_HEAD = ("", "before", "after", "change")
_COUNTERS = ("allocated", "reserved", "frameworks", "process")


def render_freed(done: Sequence[Freed]) -> str:
    """Write some actions, each with its counters before and after."""
    return "\n\n".join(_text(freed) for freed in done)


def render_freed_html(done: Sequence[Freed]) -> str:
    """Draw some actions for a notebook's output."""
    parts = [part for freed in done for part in _html(freed)]
    return element("div", *parts, style=style.BOX)


def sentences(freed: Freed) -> list[str]:
    """Return what was freed, the prediction if it differs, and why not more."""
    found = [_headline(freed)]
    if freed.measured > 0 and freed.measured != freed.predicted:
        found.append(f"{format_bytes(freed.predicted)} had been predicted.")
    if 0 < freed.measured < freed.predicted and freed.left:
        found.append(f"Not all of it went, because {_holders(freed.left)}.")
    if freed.measured > 0 and freed.measure == "allocated" and freed.after.reserved is not None:
        found.append("It is in torch's cache now; `%nbmem free cache` gives it to the driver.")
    return [*found, *map(one_line, freed.notes)]


def _headline(freed: Freed) -> str:
    what = one_line(freed.what)
    if freed.measured > 0:
        return f"{what}: {format_bytes(freed.measured)} freed."
    if freed.measured < 0:
        why = f"{format_bytes(-freed.measured)} were allocated meanwhile"
    elif freed.left:
        why = _holders(freed.left)
    elif freed.measure == "reserved":
        why = "torch has no whole segment cached that it could give back"
    elif freed.measure == "frameworks":
        why = "none of them holds memory that it does not use and could give back"
    else:
        why = "it held no memory" + (" on a card" if freed.after.reserved is not None else "")
    return f"{what}: nothing was freed, because {why}."


def _holders(left: Sequence[Root]) -> str:
    return "; ".join(_holder(root) for root in left)


def _holder(root: Root) -> str:
    size, name = format_bytes(root.reached), one_line(root.name)
    if root.kind is HolderKind.CYCLE:
        return f"{size} are in a reference cycle (`import gc; gc.collect()` frees them)"
    path = one_line(root.storages[0].name_in(root.name))
    return f"{name} holds {size}" + (f" ({path})" if path != name else "")


def _rows(freed: Freed) -> list[tuple[str, str, str, str]]:
    rows = []
    for name in _COUNTERS:
        before, after = getattr(freed.before, name), getattr(freed.after, name)
        counted = name != "reserved" or before is not None
        if not counted or (name == "frameworks" and freed.measure != name):
            continue
        if before is None or after is None:
            rows.append((name, "unknown", "unknown", ""))
            continue
        change = format_bytes(after - before, signed=True)
        rows.append((name, format_bytes(before), format_bytes(after), change))
    return rows


def _text(freed: Freed) -> str:
    table = [_HEAD, *_rows(freed)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for name, *figures in table:
        cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join((f"  {name:<{widths[0]}}", *cells)).rstrip())
    return "\n".join([" ".join(sentences(freed)), *lines])


def _html(freed: Freed) -> list[Markup]:
    head = element("tr", *(element("th", name, scope="col", style=style.HEAD) for name in _HEAD))
    body = [
        element(
            "tr",
            element("th", name, scope="row", style=style.NAME),
            *(element("td", cell, style=style.FIGURE) for cell in figures),
        )
        for name, *figures in _rows(freed)
    ]
    return [
        element("div", " ".join(sentences(freed)), style=style.ABOUT),
        element("table", element("thead", head), element("tbody", *body), style=style.TABLE),
    ]
