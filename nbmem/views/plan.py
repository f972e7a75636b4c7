"""Render the result of `plan` ("what would make it fit")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.code_block import code_html
from nbmem.views.grid import Grid, TableCell
from nbmem.views.markup import Markup, element, with_code
from nbmem.views.notes_html import fold, listed

if TYPE_CHECKING:
    from nbmem.report.estimate_results import Option, Plan

_NOTHING = 0.002
"""A remedy that saves less than this part of the process gets no row in the table."""


def render_text(plan: Plan) -> str:
    """Render the result for a terminal."""
    single = [o for o in _helpful(plan)[1:] if "+" not in o.key and o.price]
    blocks = ["\n".join(plan.sentences), _table(plan).text()]
    if single:
        prices = (f"  {o.title}: {o.price}" for o in single)
        blocks.append("\n".join(["What it costs", *prices]))
    idle = [f"  {text}" for text in _unhelpful(plan)]
    if idle:
        blocks.append("\n".join(["No help here", *idle]))
    lines = [
        f"  # {o.title}\n" + "\n".join(f"  {line}" for line in (o.diff or o.code).splitlines())
        for o in _written(plan)
    ]
    if lines:
        blocks.append("Applied to this program\n" + "\n".join(lines))
    return "\n\n".join(blocks)


def render_html(plan: Plan) -> str:
    """Render the result for a notebook's output."""
    verdict, *rest = plan.sentences
    parts: list[Markup] = [_table(plan).html()]
    written = _written(plan)
    if written:
        codes = (element("div", o.title, code_html(o.diff or o.code)) for o in written)
        parts.append(fold("Applied to this program", *codes))
    idle = _unhelpful(plan)
    if idle:
        parts.append(fold("No help here", listed(idle)))
    return element(
        "div",
        element("div", *with_code(verdict), style=style.VERDICT),
        element(
            "div",
            *with_code(f"{plan.title}, on a virtual {plan.card.name}; `~` is foreseen, not run"),
            style=style.ABOUT,
        ),
        *(element("div", *with_code(text), style=style.VERDICT) for text in rest[:1]),
        *(element("div", *with_code(text), style=style.ABOUT) for text in rest[1:]),
        *parts,
        style=style.BOX,
    )


def _process(option: Option) -> int:
    """Return the process's bytes, as run or as predicted."""
    return option.probe.need if option.probe is not None else option.foreseen or 0


def _saved(option: Option, plan: Plan) -> int:
    """Return the process's bytes saved against the unchanged program.

    This is the one measure of every column.
    """
    return _process(plan.options[0]) - _process(option)


def _helpful(plan: Plan) -> list[Option]:
    """Return the unchanged program, and the options that save memory.

    Such remedies make the process smaller.
    """
    first, *others = plan.options
    least = max(_NOTHING * _process(first), 1)
    return [
        first,
        *(
            o
            for o in others
            if (o.probe is not None or o.foreseen is not None) and _saved(o, plan) >= least
        ),
    ]


def _written(plan: Plan) -> list[Option]:
    """Return the options that help and have code, without combinations."""
    return [o for o in _helpful(plan)[1:] if "+" not in o.key and o.code]


def _unhelpful(plan: Plan) -> list[str]:
    """Return the options that do not help, each with its reason."""
    helpful = {option.key for option in _helpful(plan)}
    found = []
    for option in plan.options:
        if option.key in helpful or "+" in option.key:
            continue
        saved = _saved(option, plan)
        change = f"saves {format_bytes(saved)}" if saved else "saves nothing"
        if saved < 0:
            change = f"takes {format_bytes(-saved)} more"
        if option.probe is None:
            change = "nothing that it acts on is at the peak (foreseen, not run)"
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


def _row(option: Option, plan: Plan) -> tuple[TableCell, ...]:
    first = option.key == plan.options[0].key
    strong = first or option.cheapest
    process, saved = _process(option), _saved(option, plan)
    about = "" if option.probe is not None else "~"
    row = [
        TableCell(
            text=option.title.replace(" + ", " +\n"),
            strong=strong,
            note="" if "+" in option.key else option.price,
        ),
        TableCell(text=f"{about}{format_bytes(process)}", exact=f"{process:,} B", strong=strong),
        TableCell(
            text="" if first else f"{about}{format_bytes(saved)}",
            exact=f"{saved:,} B of the process",
            share=max(saved, 0) / max(_process(plan.options[0]), 1),
        ),
        *_ran(option, strong=strong),
        TableCell(text=_fits(option, plan), strong=strong),
    ]
    if plan.variable is not None:
        largest = "" if option.largest is None else f"{option.largest:,}"
        row.insert(3, TableCell(text=largest, exact="up to it all fit", strong=strong))
    return tuple(row)


def _ran(option: Option, *, strong: bool) -> tuple[TableCell, TableCell]:
    """Return cells with what torch held when the option ran.

    Empty cells if it was not run.
    """
    probe = option.probe
    if probe is None:
        return TableCell(text=""), TableCell(text="")
    return (
        TableCell(
            text=format_bytes(probe.allocated), exact=f"{probe.allocated:,} B", strong=strong
        ),
        TableCell(text=format_bytes(probe.reserved), exact=f"{probe.reserved:,} B", strong=strong),
    )


def _fits(option: Option, plan: Plan) -> str:
    if option.probe is None:
        return "~yes" if _process(option) <= plan.target else "~no"
    if option.cheapest:
        return "yes, the cheapest"
    return "yes" if option.probe.fits else "no"
