"""Losses of independent passes are summed for one backward.

What it sees
    Four or more forwards of the same modules in a row, whose activations all wait for one backward.
    None was given what a graph had made, and behind each a single number was computed and not
    kept: its loss, which was added to the others. It speaks if that is a quarter of the peak and a
    fiftieth of the card, or memory is short. A module that keeps a tensor of its own pass as an
    attribute may read it in the next one, so it is left alone.
What it costs
    The activations of all passes at once.
Do instead
    Call `backward()` on the loss of each pass: the gradients add up to the same, and each graph is
    freed before the next pass.
When to ignore it
    A pass reads what the one before has left in the model (a state that is not detached).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import STEP, is_graph_name
from nbmem.core.session.variable_paths import parse_path
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt_range

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


FEWEST = 4
"""Passes of one backward from which they are told."""
A_NUMBER = 8
"""Bytes that a loss has at most."""


class _Summed(NamedTuple):
    """The passes of one backward.

    Attributes:
        begins: The position at which each pass begins, and where the backward begins.
        ends: Where the backward ends.
    """

    begins: list[int]
    ends: int


def check(e: Evidence) -> Findings:
    """Find backwards of several independent passes."""
    found = [one for one in _backwards(e) if _are_losses(e, one.begins)]
    if not found:
        return
    low, high = _saved(e, found)
    passes = max(len(one.begins) - 1 for one in found)
    if e.is_large_part(low):
        yield RULE.finding(
            title=f"`loss.backward()` for each of the {passes} passes whose losses are summed: "
            f"{fmt_range(low, high)} less at the peak",
            evidence=f"The activations of {passes} passes wait for one backward, though no pass "
            "was given what another one made. Gradients add up just the same.",
            saves=estimated(low, high),
        )


def _backwards(e: Evidence) -> Iterator[_Summed]:
    """Yield the backwards behind four and more equal series of calls.

    The first module of a series is never given what a graph has made.
    """
    calls, phases = e.trace.calls, e.card_ledger.phases
    if calls is None:
        return
    names = [e.session.names[index] for index in calls.name.tolist()]
    chained = {call["module"] for call in e.calls if call.get("chained", True)}
    known = {call["module"] for call in e.calls} - chained
    before = 0
    for phase in np.flatnonzero(phases.names == "backward").tolist():
        begins, ends = phases.bounds(phase)
        inside = np.flatnonzero((calls.last >= before) & (calls.last <= begins)).tolist()
        before, mine = ends, [at for at in inside if not names[at].endswith(STEP)]
        series = [names[at] for at in mine]
        passes = series.count(series[0]) if series else 0
        if passes >= FEWEST and series[0] in known and _is_repeated(series, passes):
            first = mine[:: len(mine) // passes]
            ended = np.append(0, calls.last)  # behind the call before, where it is not known
            starts = np.where(calls.first[first] >= 0, calls.first[first], ended[first])
            if not _has_state(e, series[0], int(starts[0]), begins):
                yield _Summed([*starts.tolist(), begins], ends)


def _has_state(e: Evidence, module: str, begins: int, ends: int) -> bool:
    """Return whether a module has an attribute that its passes made.

    The next pass may read it with its graph: a state that is not detached.
    """
    a, ledger = e.card_ledger.allocations, e.card_ledger
    made = np.flatnonzero((a.allocated_at >= begins) & (a.allocated_at < ends))
    names = {ledger.name(row) or "" for row in made.tolist()}
    return any(parse_path(name).path.startswith(f"{module}.") for name in names)


def _is_repeated(series: list[str], times: int) -> bool:
    return series[: len(series) // times] * times == series


def _are_losses(e: Evidence, begins: list[int]) -> bool:
    """Return whether each pass computed numbers, few of which are kept."""
    a, ledger = e.card_ledger.allocations, e.card_ledger
    inside = (a.allocated_at >= begins[0]) & (a.allocated_at < begins[-1])
    inside &= ledger.phases.named(ledger.born_in, "forward")
    rows = np.flatnonzero(inside & (a.requested <= A_NUMBER))
    rows = rows[[not is_graph_name(ledger.name(row)) for row in rows.tolist()]]
    passes = np.searchsorted(begins, a.allocated_at[rows], side="right")
    kept = np.unique(passes[a.freed[rows] >= begins[-1]])
    return len(np.unique(passes)) == len(begins) - 1 >= 2 * len(kept)


def _saved(e: Evidence, found: list[_Summed]) -> tuple[int, int]:
    """Return by how much the peak falls at least and at most.

    Each pass frees its activations before the next one. The largest pass is there in a backward,
    with all gradients, at the latest.
    """
    a, ledger = e.card_ledger.allocations, e.card_ledger
    rows, since, beside = [], [], np.zeros(ledger.events + 1, np.int64)
    for one in found:
        begins, last = np.array(one.begins, np.int64), one.begins[-1]
        waits = (a.allocated_at >= begins[0]) & (a.allocated_at < last)
        mine = np.flatnonzero(waits & (a.freed >= last) & (a.freed <= one.ends))
        of_pass = np.searchsorted(begins, a.allocated_at[mine], side="right")
        rows.append(mine)
        since.append(begins[of_pass])
        beside[last : one.ends + 1] = int(np.bincount(of_pass, a.block[mine]).max())
        made = (ledger.category == Category.GRADIENTS) & (a.allocated_at >= last)
        beside[begins[0] : last] = int(a.block[made & (a.allocated_at < one.ends)].sum())
    without = e.allocated_without(np.concatenate(rows), np.concatenate(since))
    peak = e.report.peak.allocated
    return max(0, peak - int((without + beside).max())), peak - int(without.max())


RULE = Rule(name="summed_losses", text=__doc__, check=check)
