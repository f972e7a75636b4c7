"""The answer to "what would make it fit": text, HTML and JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.grid import Cell, Grid
from nbmem.views.html import page
from nbmem.views.markup import Markup, element

if TYPE_CHECKING:
    from nbmem.answers import Option, Plan

_CODE = (
    "margin:2px 0 8px 0;padding:4px 8px;white-space:pre;word-break:normal;overflow-x:auto;"
    "font-size:12px;line-height:1.4;border-left:3px solid rgba(128,128,128,0.35)"
)
_NOTHING = 0.002
"""A remedy that saves less than this part of what is reserved is no row of the table."""


def render_text(plan: Plan) -> str:
    """For a terminal."""
    single = _single(plan)
    blocks = ["\n".join(plan.sentences), _table(plan).text()]
    if single:
        prices = (f"  {o.title}: {o.price}" for o in single)
        blocks.append("\n".join(["What it costs", *prices]))
    idle = [f"  {text}" for text in _idle(plan)]
    if idle:
        blocks.append("\n".join(["No help here", *idle]))
    lines = [
        f"  # {o.title}\n" + "\n".join(f"  {line}" for line in o.code.splitlines()) for o in single
    ]
    if lines:
        blocks.append("Lines to paste\n" + "\n".join(lines))
    return "\n\n".join(blocks)


def render_html(plan: Plan) -> str:
    """For a notebook's output."""
    verdict, *rest = plan.sentences
    parts: list[Markup] = [_table(plan).html()]
    single = _single(plan)
    if single:
        summary = element("summary", "The lines to paste", style=style.SUMMARY)
        codes = (element("div", o.title, _code(o)) for o in single)
        parts.append(element("details", summary, *codes, style=style.DETAILS))
    idle = _idle(plan)
    if idle:
        summary = element("summary", "No help here", style=style.SUMMARY)
        items = (element("li", text) for text in idle)
        found = element("ul", *items, style=style.NOTES)
        parts.append(element("details", summary, found, style=style.DETAILS))
    return element(
        "div",
        element("div", verdict, style=style.VERDICT),
        element(
            "div",
            f"{plan.title}, each row run on a virtual {plan.card.name}",
            style=style.ABOUT,
        ),
        *(element("div", text, style=style.VERDICT) for text in rest),
        *parts,
        style=style.BOX,
    )


def render_page(plan: Plan) -> str:
    """A whole document that needs nothing else."""
    return page(f"plan of {plan.title}", render_html(plan))


def mimebundle(plan: Plan) -> dict[str, str]:
    """What a notebook's output holds."""
    return {"text/plain": render_text(plan), "text/html": render_html(plan)}


def plan_json(plan: Plan) -> dict[str, Any]:
    """A documented, stable form: keys are added in later versions, never renamed or removed.

    `card` {name, total, margin}; `target`; `variable` and `value`, null where the batch is not
    known; `options`, the program as it is first, {key, title, price, code, probe (as in the JSON of
    fit; null if not applied), saved, saved_reserved, largest, why_not}. Amounts are bytes.
    """
    raw = dataclasses.asdict(plan)
    for option in raw["options"]:
        if option["probe"] is not None:
            del option["probe"]["seconds"]
    return raw


def _helpful(plan: Plan) -> list[Option]:
    """The program as it is, and what changes the bytes of its peak."""
    first, *others = plan.options
    base = first.probe
    whole = 1 if base is None else max(base.reserved, 1)
    return [
        first,
        *(
            o
            for o in others
            if o.probe is not None and max(o.saved, o.saved_reserved) >= _NOTHING * whole
        ),
    ]


def _single(plan: Plan) -> list[Option]:
    """Those that help, without the pairs of them."""
    return [o for o in _helpful(plan)[1:] if "+" not in o.key]


def _idle(plan: Plan) -> list[str]:
    """What does not help, with the reason."""
    helpful = {option.key for option in _helpful(plan)}
    found = []
    for option in plan.options:
        if option.key in helpful or "+" in option.key:
            continue
        change = f"saves {format_bytes(option.saved)}"
        if option.saved < 0:
            change = f"takes {format_bytes(-option.saved)} more"
        found.append(f"{option.title}: {option.why_not or change}")
    return found


def _table(plan: Plan) -> Grid:
    head = ["", "process", "saved", "allocated", "reserved", "fits"]
    if plan.variable is not None:
        head.insert(3, f"largest\n{plan.variable}")
    return Grid(
        title="",
        head=tuple(head),
        rows=tuple(_row(o, plan) for o in _helpful(plan)),
        left=frozenset({0, len(head) - 1}),
    )


def _row(option: Option, plan: Plan) -> tuple[Cell, ...]:
    probe = option.probe
    assert probe is not None  # noqa: S101 - only those that ran
    base = plan.options[0].probe
    first = option.key == plan.options[0].key
    scale = max(base.allocated if base else 0, 1)
    row = [
        Cell(
            text=option.title.replace(" + ", " +\n"),
            strong=first,
            note="" if "+" in option.key else option.price,
        ),
        Cell(text=format_bytes(probe.need), exact=f"{probe.need:,} B", strong=first),
        Cell(
            text="" if first else format_bytes(option.saved),
            exact=f"{option.saved:,} B of the peak allocated",
            share=max(option.saved, 0) / scale,
        ),
        Cell(text=format_bytes(probe.allocated), exact=f"{probe.allocated:,} B", strong=first),
        Cell(text=format_bytes(probe.reserved), exact=f"{probe.reserved:,} B", strong=first),
        Cell(text="yes" if probe.fits else "no", strong=first),
    ]
    if plan.variable is not None:
        largest = "" if option.largest is None else f"{option.largest:,}"
        row.insert(3, Cell(text=largest, exact="found to within 2%", strong=first))
    return tuple(row)


def _code(option: Option) -> Markup:
    lines = option.code.splitlines()
    shown = [line for text in lines for line in (element("span", text), element("br"))][:-1]
    return element("pre", *shown, style=_CODE)
