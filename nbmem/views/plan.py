"""The answer to "what would make it fit": text, HTML and JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.grid import Cell, Grid, cells
from nbmem.views.html import page
from nbmem.views.markup import Markup, element

if TYPE_CHECKING:
    from nbmem.answers import Option, Plan

_CODE = (
    "margin:2px 0 8px 0;padding:4px 8px;white-space:pre-wrap;font-size:12px;"
    "border-left:3px solid rgba(128,128,128,0.35)"
)


def render_text(plan: Plan) -> str:
    """For a terminal."""
    blocks = ["\n".join(plan.sentences), _table(plan, prices=False).text()]
    prices = [f"  {o.title}: {o.price}" for o in _ran(plan) if o.price and "+" not in o.key]
    if prices:
        blocks.append("What it costs\n" + "\n".join(prices))
    refused = [f"  {o.title}: {o.why_not}" for o in plan.options if o.why_not]
    if refused:
        blocks.append("Not applied\n" + "\n".join(refused))
    lines = [
        f"  # {o.title}\n" + "\n".join(f"  {line}" for line in o.code.splitlines())
        for o in _single(plan)
    ]
    if lines:
        blocks.append("Lines to paste\n" + "\n".join(lines))
    return "\n\n".join(blocks)


def render_html(plan: Plan) -> str:
    """For a notebook's output."""
    verdict, *rest = plan.sentences
    refused = [o for o in plan.options if o.why_not]
    parts: list[Markup] = [_table(plan, prices=True).html()]
    single = _single(plan)
    if single:
        summary = element("summary", "The lines to paste", style=style.SUMMARY)
        codes = (element("div", o.title, _code(o)) for o in single)
        parts.append(element("details", summary, *codes, style=style.DETAILS))
    if refused:
        items = (element("li", f"{o.title}: {o.why_not}") for o in refused)
        parts.append(element("div", "Not applied", style=style.CAPTION))
        parts.append(element("ul", *items, style=style.NOTES))
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


def _ran(plan: Plan) -> list[Option]:
    return [option for option in plan.options if option.probe is not None]


def _single(plan: Plan) -> list[Option]:
    """Those with lines of their own that save something."""
    return [o for o in _ran(plan) if o.code and "+" not in o.key and o.saved > 0]


def _table(plan: Plan, *, prices: bool) -> Grid:
    with_batch = plan.variable is not None
    head = ["", "allocated", "reserved", "process", "saved"]
    if with_batch:
        head.append(f"largest {plan.variable}")
    return Grid(
        title="",
        head=(*head, "fits", *(("what it costs",) if prices else ())),
        rows=tuple(
            (*_row(o, plan, with_batch=with_batch), *(cells(_price(o)) if prices else ()))
            for o in _ran(plan)
        ),
        left=frozenset({0, len(head), len(head) + 1}),
    )


def _price(option: Option) -> str:
    """A pair costs what its two cost, which stand in rows of their own."""
    return "both" if "+" in option.key else option.price


def _row(option: Option, plan: Plan, *, with_batch: bool) -> tuple[Cell, ...]:
    probe = option.probe
    assert probe is not None  # noqa: S101 - only those that ran
    base = plan.options[0].probe
    first = option.key == plan.options[0].key
    scale = max(base.allocated if base else 0, 1)
    row = [
        Cell(text=option.title, strong=first),
        Cell(text=format_bytes(probe.allocated), exact=f"{probe.allocated:,} B"),
        Cell(text=format_bytes(probe.reserved), exact=f"{probe.reserved:,} B"),
        Cell(text=format_bytes(probe.need), exact=f"{probe.need:,} B"),
        Cell(
            text="" if first else format_bytes(option.saved),
            exact=f"{option.saved:,} B of the peak allocated",
            share=max(option.saved, 0) / scale,
        ),
    ]
    if with_batch:
        row.append(Cell(text="" if option.largest is None else f"{option.largest:,}"))
    return (*row, *cells("yes" if probe.fits else "no"))


def _code(option: Option) -> Markup:
    lines = option.code.splitlines()
    shown = [line for text in lines for line in (element("span", text), element("br"))][:-1]
    return element("pre", *shown, style=_CODE)
