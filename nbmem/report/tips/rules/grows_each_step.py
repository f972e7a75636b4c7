"""Memory grows with every step.

What it sees
    Something of which more is left from step to step, over four or more of them, and that is not
    the graph of a loss (see graph_kept): a list that gets longer, a cache without a bound, a tensor
    to which each step joins another. A step is an iteration of any loop, also of one that does not
    train. So are hooks of one module, four or more, whose objects keep equal tensors: each was
    registered and not removed. So is a tensor that a function makes empty, and fills with the
    results of four or more calls: a volume of class scores. A list of a function that has ended
    counts if it was there at the peak, and took a twentieth of the card (or a fiftieth, and a
    quarter of the peak), memory is short, or the program ends with it. A tensor that is larger
    because the whole batch is, or that decoding makes longer, is none; nor is a buffer that is
    full, or data that is loaded before the loop. It speaks of a fiftieth of the peak, or where a
    thousand such steps fill a tenth of the card.
What it costs
    The same bytes with every further step, until the card is full.
Do instead
    Keep it on the CPU (`x.detach().cpu()`), keep a running figure in place of all values, or bound
    it (`collections.deque(maxlen=...)`).
When to ignore it
    It has an end that you know, and fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.holders import HeldStorage, HolderKind
from nbmem.report.analysis.growth_candidates import common_place
from nbmem.report.analysis.program_names import is_expression, items_of
from nbmem.report.ledger.allocation_facts import NO_NAME
from nbmem.report.tips.detectors.filled_results import filled_results
from nbmem.report.tips.detectors.left_hooks import left_hooks
from nbmem.report.tips.detectors.shared_variables import item_of
from nbmem.report.tips.evidence import LARGE_PART, MIN_BYTES, Evidence
from nbmem.report.tips.rule import Findings, Rule, estimated, exact, fmt, fmt_range, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.growth import Growth
    from nbmem.report.model import Finding

KEEPERS = (HolderKind.NAME, HolderKind.CLOSURE, HolderKind.GENERATOR, HolderKind.MODULE)
"""Kinds of holders that may retain what grows; a running loop has it in a local and frees it at its
end."""
LATER, OF_THE_CARD = 1_000, 0.1
"""Number of steps after which even a small growth fills this part of the card."""

GROWN = 0.1
"""Part of what a variable holds that its growth has brought, at least."""


def check(e: Evidence) -> Findings:
    """Find what grows from step to step, by its holder."""
    for growth in e.growing:
        if len(growth.rows) and not _is_loaded_data(growth) and not _is_in_traceback(e, growth):
            kept = _kept_alone(e, growth)
            held = e.freed_bytes(kept) or growth.held - growth.graph_held
            if _is_worth(e, growth, held) and not _fits_when_full(e, growth):
                yield _finding(e, growth, held, kept)
    yield from _of_hooks(e)
    yield from _filled(e)
    for growth in e.grown_at_peak:
        others = [one.rows for one in e.grown_at_peak if one is not growth]
        low, high = _saved(e, growth, np.concatenate([growth.rows[:0], *others]))
        if _is_missed(e, growth, high) and not _is_loaded_data(growth):
            yield _at_peak(growth, low, high)


def _is_worth(e: Evidence, growth: Growth, held: int) -> bool:
    """Return whether growth is worth a tip, now or after many more steps.

    What is held came by growth, and not at once. What a function frees when it returns must have
    been missed.
    """
    if growth.slope * growth.iterations < GROWN * growth.held:
        return False
    behind = e.card_ledger.freed_behind
    if behind is not None and behind[growth.rows].all() and not _is_missed(e, growth, held):
        return False
    return e.worth(held) or (held >= MIN_BYTES and _fills(e, growth, OF_THE_CARD))


def _is_missed(e: Evidence, growth: Growth, saved: int) -> bool:
    """Return whether the room that a function's list took was missed.

    A small one counts if it was a large part of the peak, more data makes it fill the card, and
    nothing on the card reads it: the program ends with it.
    """
    if e.is_large_part(saved):
        return True
    a, last = (
        e.card_ledger.allocations,
        int(np.median(e.card_ledger.allocations.freed[growth.rows])),
    )
    read = np.any((a.allocated_at > last) & (a.block >= MIN_BYTES))
    return e.dominates(saved, LARGE_PART) and _fills(e, growth, 1) and not read


def _fills(e: Evidence, growth: Growth, share: float) -> bool:
    """Return whether many more steps fill a part of the card."""
    return e.card_known and LATER * _slope(growth) >= share * e.trace.info.total_bytes


def _fits_when_full(e: Evidence, growth: Growth) -> bool:
    """Return whether the card has room for what grows, at its limit."""
    shares: dict[str, float] = {
        path: most / max(items, 1) for path, items, most in e.fact("bounds") or ()
    }
    if growth.where or not growth.parts or not e.card_known or not set(growth.parts) <= set(shares):
        return False
    largest, fullest = max(shares[part] for part in growth.parts), e.fullest
    return growth.held * (largest - 1) <= fullest.total_bytes - fullest.used


def _slope(growth: Growth) -> int:
    return growth.slope - growth.graph_slope


def _is_loaded_data(growth: Growth) -> bool:
    """Return whether the growth may be data or layers, which are loaded once."""
    return not growth.works


def _is_in_traceback(e: Evidence, growth: Growth) -> bool:
    """Return whether only another error's traceback keeps it."""
    kinds = {way.kind for held in e.held_in(growth.rows) for way in held.holders}
    return kinds == {HolderKind.TRACEBACK} and not e.ran_out


def _later(growth: Growth) -> str:
    made = f", by what {growth.line} makes" if growth.line else ""
    return (
        f"grew in {growth.iterations} steps{made}. "
        f"1,000 steps would take {fmt(LATER * _slope(growth))}."
    )


def _finding(e: Evidence, growth: Growth, held: int, kept: list[HeldStorage]) -> Finding:
    name = growth.title or "What no name holds"
    code = _code(e, growth, kept)
    return RULE.finding(
        title=f"{name} grows by {fmt(_slope(growth))} with every step and holds {fmt(held)}",
        evidence=f"It {_later(growth)}",
        # a cure without code may keep what is in use
        saves=exact(held) if code else estimated(held - _slope(growth), held),
        code=code,
    )


def _of_hooks(e: Evidence) -> Findings:
    """Find hooks that were registered again and again, and not removed."""
    for left in left_hooks(e):
        held, told = e.freed_bytes(left.storages), {one.root for one in e.growing}
        if e.worth(held) and left.module.split(".")[0] not in told:
            yield RULE.finding(
                title=f"`{left.module}` has {left.hooks} hooks whose objects keep {fmt(held)}: "
                "`handle.remove()` when each is done",
                evidence=f"{len(left.storages)} tensors are reached only through hooks of "
                f"{left.module}. Each registered one adds its own, with every call.",
                saves=estimated(held - held // left.hooks, held),  # the last one may be in use
            )


def _filled(e: Evidence) -> Findings:
    """Find tensors of a function that wait for the results of many calls."""
    results = filled_results(e)
    if results is None:
        return
    both = np.concatenate([results.rows, results.made_of_them])
    low, high = (e.peak_saving(rows) for rows in (results.rows, both))
    if e.is_large_part(low):
        first = results.lines[0]
        made = " and ".join(f"`{line.text}` ({line.place})" for line in results.lines[:2])
        yield RULE.finding(
            title=f"{made} in {first.frame.function}() "
            f"collect{'s' * (len(results.lines) == 1)} results on the card: "
            f"{fmt_range(low, high)} less at the peak with them on the CPU",
            evidence="A module is called many times, and each result is written into a part of "
            'it. Make it with device="cpu", and move each part there.',
            saves=simulated(low, high),
        )


def _at_peak(growth: Growth, low: int, high: int) -> Finding:
    where = f" made at {growth.line}" if growth.line else ""
    name, size = growth.title or f"A list of tensors{where}", fmt(growth.held)
    return RULE.finding(
        title=f"{name} grows by {fmt(_slope(growth))} with every step and held {size} "
        f"at the peak: keep it on the CPU",
        evidence=f"It was freed later. Until then it {_later(growth)} "
        f"Moved to the CPU at once, it leaves the peak {fmt_range(low, high)} lower.",
        saves=simulated(low, high),
    )


def _saved(e: Evidence, growth: Growth, others: Ints) -> tuple[int, int]:
    """Return by how much the peak falls at least and at most.

    The growth is on the CPU then. At least: each item lives until the next one exists, since a
    variable of the loop has it. A function that is called again has the list again, and is mended
    with it. `others` are the allocations of other variables that grow.
    """
    card_ledger, a = e.card_ledger, e.card_ledger.allocations
    names = np.unique(card_ledger.names[growth.rows])
    same = np.flatnonzero(np.isin(card_ledger.names, names[names != NO_NAME]))
    change = np.zeros(card_ledger.events + 2, np.int64)
    np.add.at(change, a.allocated_at[same] + 1, 1)
    np.subtract.at(change, a.freed[same] + 1, 1)
    without = np.cumsum(change)[: card_ledger.events + 1] == 0
    first, last = a.allocated_at[growth.rows].min(), a.freed[growth.rows].max()
    without[first + 1 : last + 1] = True
    curves = (
        _without_joined(e, growth.rows) if growth.joined else _without_list(e, growth.rows, others)
    )
    low, high = (e.report.peak.allocated - int(curve[without].max()) for curve in curves)
    return low, high


def _without_joined(e: Evidence, rows: Ints) -> tuple[Ints, Ints]:
    """Return the curve of allocated bytes with a tensor on the CPU, twice."""
    curve = e.allocated_without(rows, after=0)
    return curve, curve


def _without_list(e: Evidence, rows: Ints, others: Ints) -> tuple[Ints, Ints]:
    """Return the curves of allocated bytes with a list on the CPU.

    So is what joins it. In the first, each item lives until the next one exists; in the second
    for one event.
    """
    a = e.card_ledger.allocations
    rows, result = _list_and_result(e, rows, others)
    of_result = e.card_ledger.allocated - e.allocated_without(result)
    born = a.allocated_at[rows]
    until_next = np.append(born[1:], born[-1:]) + 1
    long, short = (e.allocated_without(rows, since=gone) for gone in (until_next, born + 1))
    return long - of_result, short - of_result


def _list_and_result(e: Evidence, rows: Ints, others: Ints) -> tuple[Ints, Ints]:
    """Return the items of a list, and what `torch.cat` made of them.

    The list was freed at once. Some of its items have other names: the loop's variable. What
    another list has, that was freed with it, is none of its items.
    """
    a = e.card_ledger.allocations
    ended = int(np.median(a.freed[rows]))
    burst = np.searchsorted(np.sort(a.allocated_at), [ended, *a.freed])
    together = (burst[1:] == burst[0]) & (a.allocated_at >= 0)
    together[np.setdiff1d(others, rows)] = False
    behind = (a.allocated_at > a.allocated_at[rows].max()) & (a.allocated_at < ended)
    found = []
    for size in np.unique(a.requested[rows]).tolist():
        alike = np.flatnonzero(together & (a.requested == size))
        rows = np.union1d(rows, alike)
        if len(alike) > 1:
            found.append(np.flatnonzero(behind & (a.requested == len(alike) * size)))
    return rows, np.concatenate([rows[:0], *found])


def _kept_alone(e: Evidence, growth: Growth) -> list[HeldStorage]:
    """Return the storages that are freed with the variable.

    Another name for the object that has the list (a loop's `layer` of a model) frees them as well.
    """
    if growth.root is None:
        return []
    return [held for held in e.held_in(growth.rows) if _is_kept_by(held, growth.root)]


def _is_kept_by(held: HeldStorage, root: str) -> bool:
    own = [way.path for way in held.holders if way.root == root]
    rests = [way.path.removeprefix(way.root) for way in held.holders if way.root != root]
    alone = all(rest and any(path.endswith(rest) for path in own) for rest in rests)
    return bool(own) and alone and all(way.kind in KEEPERS for way in held.holders)


def _code(e: Evidence, growth: Growth, kept: list[HeldStorage]) -> str | None:
    """Return code that takes what is kept off the card, or None.

    None unless it is a tensor, or a list of tensors, with a name.
    """
    if e.trace.info.kind == "cpu" or growth.root is None or growth.where or not kept:
        return None  # on the CPU it is in the host's memory already
    paths = [held.name_in(growth.root) for held in kept]
    place = common_place(paths)
    if not is_expression(place):
        return None
    if paths == [place]:
        return f"{place} = {place}.cpu()   # and join only x.detach().cpu() to it"
    if items_of(place, paths) is None:
        return None
    item = item_of(e.held, place) or "x"
    return (
        f"for i in range(len({place})):   # and append only {item}.detach()"
        f".cpu()\n    {place}[i] = {place}[i].cpu()"
    )


RULE = Rule(name="grows_each_step", text=__doc__, check=check, anywhere=True, of_growth=True)
