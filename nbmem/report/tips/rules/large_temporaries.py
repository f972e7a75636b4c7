"""The temporaries of one function make the peak.

What it sees
    Tensors that lived only within one function of yours and were a third of the highest allocated
    bytes: the parts of an expression (`(a - b).pow(2).sum(2)`), copies, or the items of a list that
    was used and dropped. The line is known of the first steps of a recording, and of later ones
    that make the same. It speaks if they are 5% of the card, or memory is short. A function that
    also makes or moves data (`torch.zeros`, `.to(device)`) is left alone.
What it costs
    All of them at once, though only the function's result is needed.
Do instead
    Call the function with a part of its rows at a time (`x.split(n)`), make and use the items of
    the list one by one, or call an operator that writes no such tensor:
    `F.scaled_dot_product_attention`, `torch.cdist`, `logsumexp` in place of `log_softmax`.
When to ignore it
    The card has room for them, and nothing larger is to come.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.source_files import TOP_LEVEL
from nbmem.report.analysis.allocation_lines import COMPREHENSIONS, allocation_lines, shorten
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.allocation_lines import AllocationLine, UserLine
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

    Lines = Mapping[int, AllocationLine]
    _Function = tuple[str, str, int]

SHARE = 1 / 3
"""Part of the peak that one function's temporaries have at least."""
SMALL = 0.01
"""Part of the function's largest temporary from which another one counts."""
PARTS = 8
"""Parts for which a saving is promised at least: one part's temporaries remain."""
LISTED = 4
"""Tensors of one line from which they are the items of a list."""
_DATA = re.compile(
    r"(?<!\[)\btorch\.(?:rand|randn|randint|randperm|zeros|ones|empty|full|arange|eye|tensor"
    r"|from_numpy)\("
    r"|\.cuda\(|\.to\((?!dtype=|[\w.]*dtype\)|torch\.(?:b?float|int|uint|half|double|long|bool)\d*\))"
)
"""Calls that make or move data: a function with one does not only compute. A conversion to another
type computes, and so do `torch.zeros_like(x)` and an index (`x[torch.randperm(n)]`)."""
_MATRIX_PRODUCT = re.compile(r"@|\b(?:matmul|bmm|einsum|baddbmm)\(")
_SQUARED_DIFFERENCE = re.compile(
    r"\bpow\([^,]+ - [^,]+, *2\)|\([^()]+ - [^()]+\)(?: *\*\* *2|\.pow\(2\)|\.square\(\))"
)

_REPEATED = re.compile(r"\.(?:repeat|repeat_interleave|tile)\(|\brepeat_interleave\(")
_SQUARE_SVD = re.compile(r"\blinalg\.svd\((?!.*\bfull_matrices=False)")
_DIAGONAL = re.compile(
    r"@ *(?:[\w.]+\.diag(?:_embed)?\(\)|torch\.diag(?:_embed)?\()"
    r"|(?:\.diag(?:_embed)?\(\)|\btorch\.diag(?:_embed)?\([^()]*\)) *@"
)
_ONE_HOT = re.compile(r"\bone_hot\(")
_WRITTEN_OUT = re.compile(
    "|".join(one.pattern for one in (_SQUARED_DIFFERENCE, _REPEATED, _ONE_HOT))
)
_CURES = {
    _SQUARED_DIFFERENCE: "`torch.cdist(x, y)` makes only the distances",
    _ONE_HOT: "class numbers do (`x.gather(1, target[:, None])`, or `cross_entropy`)",
    _SQUARE_SVD: "`full_matrices=False` makes no more vectors than there are singular values",
    _DIAGONAL: "multiply by the vector (`x * v`), which makes no square matrix",
    _REPEATED: "`x.expand(...)` and broadcasting (`x[:, None] + y[None]`) write no copies",
}
NEVER = 1 << 62
KEPT = (Category.USER_TENSORS, Category.INPUTS)
"""Categories of what a variable holds: a repeated tensor counts wherever it is."""


def check(e: Evidence) -> Findings:
    """Find the function whose temporaries are the largest part of the peak."""
    card_ledger, lines = e.card_ledger, allocation_lines(e.card_ledger)
    functions: dict[_Function, list[int]] = defaultdict(list)
    written = _written_out(e, lines)
    ended = e.ran_out or e.session.error is not None
    for row, line in lines.items():
        if not ended and card_ledger.allocations.freed[row] >= card_ledger.events:
            continue  # it outlived the function
        key = _function_of(line)
        saved = card_ledger.category[row] == Category.ACTIVATIONS
        saved &= int(card_ledger.allocations.block[row]) >= written.get(key, NEVER)
        saved |= card_ledger.category[row] in KEPT and bool(_REPEATED.search(line.lines[0].text))
        if not line.by_module and (saved or card_ledger.category[row] == Category.TEMPORARIES):
            functions[key].append(row)
    a = card_ledger.allocations
    every = {key: np.array(rows, np.int64) for key, rows in functions.items()}
    there = {key: rows[e.live_at_peak(rows)] for key, rows in every.items()}
    there = {
        key: rows[a.block[rows] >= SMALL * a.block[rows].max(initial=0)]
        for key, rows in there.items()
    }
    there = {key: rows for key, rows in there.items() if len(rows) and not _has_data(rows, lines)}
    if not there:
        return
    key = max(there, key=lambda one: int(a.block[there[one]].sum()))
    rows = _with_gradients(e, every[key])
    size = int(a.block[rows[e.live_at_peak(rows)]].sum())
    high = e.peak_saving(rows)
    low = high - high // PARTS
    copied = [row for row in rows.tolist() if _is_repeated(lines.get(row))]
    if copied:  # without copies the rest is still computed at once
        low = min(low, e.peak_saving(np.array(copied, np.int64)))
    needless = copied and e.is_needless(low)
    if needless or (e.dominates(size, SHARE) and e.matters(high)):
        yield _finding(e, there[key], lines, low, high)


def _is_repeated(line: AllocationLine | None) -> bool:
    return line is not None and _REPEATED.search(line.lines[0].text) is not None


def _function_of(line: AllocationLine) -> _Function:
    inner = line.lines[0]
    return inner.frame.file, inner.frame.function, inner.begins


def _written_out(e: Evidence, lines: Lines) -> dict[_Function, int]:
    """Return functions that materialize a tensor needlessly, by their sizes.

    A graph may save such tensors, and what the function makes of them. They are half as large as
    the largest one, or larger.
    """
    found: dict[_Function, int] = defaultdict(int)
    for row, line in lines.items():
        if _WRITTEN_OUT.search(line.lines[0].text or "") and not line.by_module:
            key = _function_of(line)
            found[key] = max(found[key], int(e.card_ledger.allocations.block[row]) // 2)
    return found


def _with_gradients(e: Evidence, rows: Ints) -> Ints:
    """Return a function's allocations with the gradients of saved ones."""
    ledger, a = e.card_ledger, e.card_ledger.allocations
    kept = a.requested[rows[ledger.category[rows] == Category.ACTIVATIONS]]
    back = ledger.phases.named(ledger.born_in, "backward") & np.isin(a.requested, kept)
    found: Ints = np.union1d(rows, np.flatnonzero(back))
    return found


def _has_data(rows: Ints, lines: Lines) -> bool:
    """Return whether one of some allocations is data, by its line.

    A line outside of any function whose text is not known may be one that loads data.
    """
    found = [lines[row].lines[0] for row in rows.tolist()]
    return any(
        _DATA.search(line.text)
        if line.text
        else line.frame.function.startswith((*TOP_LEVEL, *COMPREHENSIONS))
        for line in found
    )


def _finding(e: Evidence, rows: Ints, lines: Lines, low: int, high: int) -> Finding:
    a = e.card_ledger.allocations
    sizes: Counter[UserLine] = Counter()
    tensors: dict[UserLine, Counter[int]] = defaultdict(Counter)
    for row in rows.tolist():
        line = lines[row].lines[0]
        sizes[line] += int(a.block[row])
        tensors[line][int(a.requested[row])] += 1
    largest = sizes.most_common(1)[0][0]
    caller = _caller(rows, lines, largest)
    called = f", called by `{shorten(caller.text)}`," if caller is not None and caller.text else ""
    total = fmt(sum(sizes.values()))
    return RULE.finding(
        title=f"{largest.quoted}{largest.inside}{called} makes temporaries that hold {total} at "
        f"the peak: {_cure(list(sizes), caller)}",
        evidence=f"{'; '.join(map(_line_sizes, tensors.items()))}. They are freed as soon as the "
        f"function has its result; without them the peak is {fmt(high)} lower, at least "
        f"{fmt(low)}.",
        saves=simulated(low, high),
    )


def _line_sizes(made: tuple[UserLine, Counter[int]]) -> str:
    line, counts = made
    each = " and ".join(f"{count} x {fmt(size)}" for size, count in counts.most_common(2))
    return f"{line.place} made {each}"


def _caller(rows: Ints, lines: Lines, largest: UserLine) -> UserLine | None:
    """Return the line that collects a function's results, or None."""
    of_line = [lines[row].lines for row in rows.tolist() if lines[row].lines[0] == largest]
    callers = {own[1:] for own in of_line}
    if len(of_line) < LISTED or len(callers) > 1:
        return None
    outer = callers.pop()
    return next((one for one in outer if one.frame.function not in COMPREHENSIONS), None)


def _cure(lines: Sequence[UserLine], caller: UserLine | None) -> str:
    """Return what to do instead, by what the lines say."""
    text = "\n".join(line.text for line in lines)
    if "log_softmax(" in text:
        return "gather from the logits, and subtract `logits.logsumexp(-1)` of a few rows at a time"
    if "softmax(" in text and _MATRIX_PRODUCT.search(text):
        return "`F.scaled_dot_product_attention(q, k, v)` writes no such matrix"
    for pattern, cure in _CURES.items():
        if pattern.search(text):
            return cure
    if caller is not None:
        return "make and use them one by one"
    return "compute it in parts, each used before the next (`x.split(n)`)"


RULE = Rule(name="large_temporaries", text=__doc__, check=check)
