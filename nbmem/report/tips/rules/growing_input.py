"""Each call of a model takes more than the one before: its input grows.

What it sees
    A model that is called again and again, each time with equally many rows more than the time
    before, twice as many at least in the end, and nothing of it stays on the card: a list whose
    batch is used and not emptied, so that each call has the rows of all calls before.
What it costs
    As many times the memory of the first call as its rows have become, and the time of all of them.
Do instead
    Empty the list when its batch has been used.
When to ignore it
    A search for the largest batch, or a table of sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.events import NOT_KNOWN
from nbmem.report.analysis.iterations import MIN_ITERATIONS
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence

FACTOR = 2
"""Rows of the last input, as a multiple of those of the first one, from which it grows."""
EVEN = 0.9
"""Part of the calls that have equally many rows more than the one before: what is added each time.
None has fewer."""
NAMED = 0.75
"""Part of the calls whose inputs must be known."""
_INPUT = re.compile(r"input .*\((\d+)[,)]")


class _RisingCalls(NamedTuple):
    """The calls of a model, in their order.

    Attributes:
        name: The model.
        begins: The position at which each call's input was made.
        rows: The rows of its input, the first of the dimensions.
        taken: The bytes of each input, call and what follows it, beside what was there before.
    """

    name: str
    begins: Ints
    rows: Ints
    taken: Ints


def check(e: Evidence) -> Findings:
    """Find the model whose calls rise to the peak."""
    if e.growing:
        return  # what is given to the model is on the card, and has a tip of its own
    found = [(_saved(e, calls), calls) for calls in _called(e) if _is_growing(e, calls)]
    if not found:
        return
    (low, high), calls = max(found, key=lambda one: one[0])
    if not e.is_large_part(low):
        return
    first, last = calls.rows[[0, -1]].tolist()
    yield RULE.finding(
        title=f"`{calls.name}` gets more rows with each call: empty the list that they are from "
        f"when it has been used, {fmt_range(low, high)} less at the peak",
        evidence=f"Its input had {first:,} rows in the first of {len(calls.rows)} calls seen, "
        f"which took {fmt(int(calls.taken[0]))}, and {last:,} in the last one, which took "
        f"{fmt(int(calls.taken[-1]))}.",
        saves=estimated(low, high),
    )


def _called(e: Evidence) -> Iterator[_RisingCalls]:
    """Yield the models that were called several times with a new input."""
    a, ledger, calls = e.card_ledger.allocations, e.card_ledger, e.trace.calls
    if calls is None:
        return
    texts = [_INPUT.match(text) for text in ledger.texts]
    of_text = np.array([0 if found is None else int(found[1]) for found in texts] + [0], np.int64)
    rows_of = of_text[ledger.names]  # without a name the index is -1, and leads to that last 0
    inputs = np.flatnonzero(rows_of)
    made = a.allocated_at[inputs]
    indices, counts = np.unique(calls.name, return_counts=True)
    often = {e.session.names[i]: i for i in indices[counts >= MIN_ITERATIONS].tolist()}
    for name in (name for name in e.passes.modules if name in often):
        begins = np.sort(calls.first[calls.name == often[name]])
        if begins[0] == NOT_KNOWN:
            continue
        last = np.searchsorted(made, begins) - 1  # the last input before each call
        own = np.diff(last, prepend=-1) > 0  # in a loop, not every call's input has its name
        if own.sum() >= max(MIN_ITERATIONS, NAMED * len(begins)):
            mine = inputs[last[own]]
            given = a.allocated_at[mine]
            yield _RisingCalls(name, given, rows_of[mine], _taken(e, given))


def _taken(e: Evidence, begins: Ints) -> Ints:
    allocated = e.card_ledger.allocated
    ends = [*(begins[1:] + 1).tolist(), len(allocated)]
    spans = [allocated[i:j] for i, j in zip(begins.tolist(), ends, strict=True)]
    return np.array([span.max() - span[0] for span in spans], np.int64)


def _is_growing(e: Evidence, calls: _RisingCalls) -> bool:
    rises = np.diff(calls.rows)
    return bool(
        calls.rows[-1] >= FACTOR * calls.rows[0]
        and rises.min() >= 0
        and (rises == np.median(rises)).mean() >= EVEN
        and e.report.peak.at.event >= calls.begins[-1]
    )


def _saved(e: Evidence, calls: _RisingCalls) -> tuple[int, int]:
    """Return by how much the peak falls at least and at most.

    Each call has as many rows as the first one then, and each row takes as much as those of the
    call with the most for each row, or the least.
    """
    left = e.report.peak.allocated - int(e.card_ledger.allocated[calls.begins].max())
    of_first = calls.taken / calls.rows * calls.rows[0]
    return left - int(of_first.max()), left - int(of_first.min())


RULE = Rule(name="growing_input", text=__doc__, check=check)
