"""An activation function is written out as a formula.

What it sees
    A line such as `x * torch.sigmoid(x)` whose steps a graph saves: autograd keeps the result of
    each, beside the input. It speaks if the peak is a quarter lower without them, or if they would
    be missed on this card.
What it costs
    A tensor of the input's size for each step of the formula, in every layer.
Do instead
    torch's own function, which saves its input alone and computes the rest again in backward:
    `F.silu(x)`, `F.mish(x)`, `F.gelu(x)`, `F.gelu(x, approximate="tanh")`.
When to ignore it
    The formula differs from torch's in a constant that matters to you.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.allocation_lines import UserLine, allocation_lines, shorten
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt_range

if TYPE_CHECKING:
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

_X = r"(?<![\w.])(?P<x>[\w.]+)"
_OF = r"(?:torch\.|F\.|nn\.functional\.|torch\.nn\.functional\.)?"


class _Formula(NamedTuple):
    """An activation function as people write it out.

    Attributes:
        text: Matches it in a line; the group `x` is its argument.
        steps: The operators whose results it saves in vain.
        instead: torch's own function, with the argument as `{}`.
    """

    text: re.Pattern[str]
    steps: tuple[str, ...]
    instead: str


FORMULAS = (
    _Formula(
        re.compile(
            rf"{_X} \* {_OF}sigmoid\((?P=x)\)|{_OF}sigmoid\((?P<y>[\w.]+)\) \* (?P=y)\b"
            r"|\b(?P<z>\w+) \* (?P=z)\.sigmoid\(\)|\b(?P<u>\w+)\.mul_?\((?P=u)\.sigmoid\(\)\)"
        ),
        ("sigmoid",),
        "F.silu({})",
    ),
    _Formula(
        re.compile(rf"{_X} \* {_OF}tanh\({_OF}softplus\((?P=x)\)\)"),
        ("softplus", "tanh"),
        "F.mish({})",
    ),
    _Formula(
        re.compile(rf"(?<![\w.])0?\.5 \* {_X} \* \(1(?:\.0?)? \+ {_OF}erf\("),
        ("erf", "mul", "add"),
        "F.gelu({})",
    ),
    _Formula(
        re.compile(rf"(?<![\w.])0?\.5 \* {_X} \* \(1(?:\.0?)? \+ {_OF}tanh\("),
        ("tanh", "mul", "pow", "add"),
        'F.gelu({}, approximate="tanh")',
    ),
)


def check(e: Evidence) -> Findings:
    """Find such formulas, and the tensors that their steps save."""
    ledger = e.card_ledger
    found: dict[_Formula, list[int]] = defaultdict(list)
    lines: dict[_Formula, UserLine] = {}
    for row, line in allocation_lines(ledger).items():
        own = line.lines[0]
        formula = next((one for one in FORMULAS if one.text.search(own.text)), None)
        if formula is not None and _is_step(formula, ledger.category[row], ledger.name(row)):
            found[formula].append(row)
            lines.setdefault(formula, own)
    for formula, rows in found.items():
        gain = e.peak_saving(np.array(rows, np.int64))
        if e.is_large_part(gain) or e.is_needless(gain):
            yield _finding(e, formula, lines[formula], rows, gain)


def _is_step(formula: _Formula, category: int, name: str | None) -> bool:
    """Return whether a step of a formula made a saved tensor."""
    saved = name is not None and category == Category.ACTIVATIONS
    return saved and any(f"({step})" in str(name) for step in formula.steps)


def _finding(e: Evidence, formula: _Formula, line: UserLine, rows: list[int], gain: int) -> Finding:
    written = formula.text.search(line.text)
    argument = next(filter(None, written.groups())) if written else "x"
    text = shorten(written[0] if written else line.text)
    instead = formula.instead.format(argument)
    largest = int(e.card_ledger.allocations.block[rows].max())
    low, high = gain - largest, gain + largest  # the backward of each has other temporaries
    return RULE.finding(
        title=f"`{instead}` for `{text}` ({line.place}){line.inside}: {fmt_range(low, high)} less "
        "at the peak",
        evidence=f"Autograd saves {len(rows)} results of {' and '.join(formula.steps)} for "
        "backward, beside the inputs; torch's function computes them again.",
        saves=estimated(low, high),
        code=f"from torch.nn import functional as F\n\n{instead}   # {line.place}",
    )


RULE = Rule(name="written_out_activation", text=__doc__, check=check)
