"""A reference cycle keeps tensors until the garbage collector runs.

What it sees
    Tensors that no name, frame or module reaches any more, only objects that point at each other.
    And what a collection freed while it was recorded, if some of it was garbage at the peak: the
    program had made its successor by then. And what a collection freed after a request had failed
    that ended the program. And equal tensors of four or more iterations, a tenth of the peak, that
    nothing in Python reaches: a hook in C++ that refers to the object with its graph.
What it costs
    Their bytes. The collector counts objects, not bytes of a card, so it may not run for long.
Do instead
    `import gc; gc.collect()` gives it back now. Break the cycle for good: no `self` in a closure
    that `self` keeps, a weakref to the parent, `ctx.save_for_backward(y)` for `ctx.y = y`, `del` of
    an exception that was stored.
When to ignore it
    It is small, and gone a few steps later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.holders import HeldStorage, HolderKind
from nbmem.core.session.tensor_names import WRITES_TO, is_context
from nbmem.report.analysis.collected_cycles import find_collected_cycles
from nbmem.report.analysis.oom.failed_request import request_that_ended
from nbmem.report.analysis.program_names import is_expression
from nbmem.report.analysis.source_lines import users_line
from nbmem.report.tips.detectors.unreachable_tensors import unreachable_tensors
from nbmem.report.tips.rule import Findings, Rule, estimated, exact, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

THROUGH = "a reference cycle through "


def check(e: Evidence) -> Findings:
    """Find tensors that only a reference cycle keeps, or has kept."""
    mine = e.held_only_by(HolderKind.CYCLE)
    yield from _at_peak(e, mine)
    yield from _outside_of_python(e)
    yield from _after_failure(e)
    freed = e.freed_bytes(mine)
    if e.worth(freed):
        largest = max(mine, key=lambda s: s.size)
        name = largest.name
        through = f" through `{name.removeprefix(THROUGH)}`" if name.startswith(THROUGH) else ""
        yield RULE.finding(
            title=f"`gc.collect()` gives back {fmt(freed)} that a reference cycle{through} keeps",
            evidence=f"Nothing reaches {len(mine)} tensors any more but objects that point at each "
            f"other; the largest hangs on {largest.name}, {fmt(largest.size)}.",
            saves=exact(freed),
            code="import gc\n\ngc.collect()",
        )


def _outside_of_python(e: Evidence) -> Findings:
    """Find tensors of many iterations that only references in C++ keep."""
    found = unreachable_tensors(e)
    if found is None:
        return
    unseen = e.held_only_by(HolderKind.UNSEEN)
    size, most = int(e.card_ledger.allocations.block[found.rows].sum()), found.times
    saves = estimated(size - size // most, e.freed_bytes(unseen))
    written = next(
        (way.path for held in unseen for way in held.holders if way.path.startswith(WRITES_TO)), ""
    )
    if written:
        place = written.removeprefix(WRITES_TO)
        yield RULE.finding(
            title=f"{found.place} leaves {fmt(size // most)} behind each time, {fmt(size)} in all: "
            f"in the graph of in-place writes to `{place}`",
            evidence=f"{place} lives on from call to call, and its graph with it: each write adds "
            "to it what it needs for a backward, and no backward goes through it.",
            saves=saves,
            code=f"{place}.detach_()   # behind the step; or write `x.detach()` into it"
            if is_expression(place)
            else None,
        )
        return
    yield RULE.finding(
        title=f"{found.place} leaves {fmt(size // most)} behind each time, {fmt(size)} in all: "
        f"a cycle through C++{_context(unseen)}, which gc.collect() does not free",
        evidence=f"Nothing that Python can see reaches {len(found.rows)} tensors. A hook of a "
        "`grad_fn` that refers to the object with the graph closes such a cycle, and so "
        "does a `ctx` that keeps what leads to its own result: let it hold a "
        "`weakref.ref`.",
        saves=saves,
    )


def _context(unseen: Sequence[HeldStorage]) -> str:
    """Return the `ctx` that leads to most storages, for a title, or ""."""
    sizes: Counter[str] = Counter()
    for held in unseen:
        for path in {holder.path for holder in held.holders if is_context(holder.path)}:
            sizes[path] += held.size
    return f" and `{max(sizes, key=sizes.__getitem__)}`" if sizes else ""


def _at_peak(e: Evidence, dead: Sequence[HeldStorage]) -> Findings:
    """Find what was garbage at the peak, and freed by a collection."""
    rows = np.array([row for held in dead if (row := e.row_of(held)) is not None], np.int64)
    top = e.report.peak.at.event
    found = find_collected_cycles(e.card_ledger, rows, top)
    if found is None or not e.worth(found.low):
        return
    row = int(found.rows[0])
    name = e.card_ledger.name(row)
    stack = int(e.card_ledger.allocations.stack[row])
    line = users_line(e.session.stacks[stack]) if stack >= 0 else None
    closing = _closing_reference(e, name, dead)
    through = f" through {closing}" if closing else f" of {name}" if name else ""
    yield RULE.finding(
        title=f"The garbage collector freed {fmt(found.freed)} that reference cycles{through} "
        f"kept, {fmt(found.at_peak)} of it at the peak",
        evidence=f"{len(found.rows)} tensors of the peak were out of use, the largest is "
        f"{name or 'unnamed'}{f', made at {line}' if line else ''}. Break the cycle, or "
        "call `gc.collect()` where they go out of use.",
        saves=simulated(found.low, max(found.low, found.high)),
        code="import gc\n\ngc.collect()   # behind the `del`, or at the end of a step",
    )


def _after_failure(e: Evidence) -> Findings:
    """Find what was collected after the request that ended the program.

    No code of the program has run in between, and the error keeps its functions' variables. So
    nothing reached these tensors when the request failed.
    """
    failed, collected = request_that_ended(e.card_ledger), e.trace.collected
    if failed is None or collected is None:
        return
    a, at = e.card_ledger.allocations, failed.index
    late = collected.event[collected.event > at]
    rows = np.flatnonzero(np.isin(a.freed, late) & (a.allocated_at < at))
    freed = int(a.block[rows].sum())
    if e.worth(freed):
        yield RULE.finding(
            title=f"The garbage collector freed {fmt(freed)} that reference cycles kept, "
            "but only after the request had failed",
            evidence=f"Nothing reached {len(rows)} tensors any more when the program asked for "
            f"{fmt(failed.size)}. Break the cycle, or call `gc.collect()` where they go out "
            "of use.",
            saves=exact(freed),
            code="import gc\n\ngc.collect()   # before the line that failed",
        )


def _closing_reference(e: Evidence, name: str | None, dead: Sequence[HeldStorage]) -> str | None:
    """Return the attribute that closes the cycle, or None.

    It is that of a model whose weights have such names, else that of what is left of the cycles.
    """
    for module in e.modules:
        if module.get("cycle") and name and name.startswith(f"{module['name']}."):
            return f"`{module['cycle']}`"
    ways = {held.name for held in dead if held.name.startswith(THROUGH)}
    return f"`{ways.pop().removeprefix(THROUGH)}`" if len(ways) == 1 else None


RULE = Rule(name="reference_cycle", text=__doc__, check=check, anywhere=True, of_garbage=True)
