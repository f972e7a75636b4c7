"""Memory grows with every step.

What it sees
    Something of which more is left from step to step, over four or more of them, and that is not
    the graph of a loss (see graph_kept): a list that gets longer, a cache without a bound, a tensor
    to which each step joins another. A tensor that is larger because the whole batch is, or that
    decoding makes longer, is none. It speaks of a fiftieth of the peak, or where a thousand such
    steps fill a tenth of the card.
What it costs
    The same bytes with every further step, until the card is full.
Do instead
    Keep it on the CPU (`x.detach().cpu()`), keep a running figure in place of all values, or bound
    it (`collections.deque(maxlen=...)`).
When to ignore it
    It has an end that you know, and fits.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HolderKind
from nbmem.report.analysis.growth import update_positions
from nbmem.report.analysis.program_names import is_expression, items_of
from nbmem.report.analysis.totals_by_name import group_by_account
from nbmem.report.model import Finding
from nbmem.report.tips.evidence import LEAST
from nbmem.report.tips.rule import Rule, fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from nbmem.core.session.holders import HeldStorage
    from nbmem.report.analysis.growth import Growth
    from nbmem.report.tips.evidence import Evidence

    Ints = NDArray[np.int64]

OTHERS = (Category.ACTIVATIONS, Category.WORKSPACE)
"""Growth that other rules report, or that is no fault."""
KEEPERS = (HolderKind.NAME, HolderKind.CLOSURE, HolderKind.GENERATOR, HolderKind.MODULE)
"""Kinds of holders that may retain what grows; a running loop has it in a local and frees it at its
end."""
MOST = 0.5
"""Part of the growth that one holder must have; the last tensor also has its own name in the
loop."""
AS_BEFORE = 0.75
"""Part of what forwards allocate with an unchanged size, where the batch's size changes: with a
longer batch, autocast's copies of the weights also change."""
LATER, OF_THE_CARD = 1_000, 0.1
"""Number of steps after which even a small growth fills this part of the card."""


def check(e: Evidence) -> Iterator[Finding]:
    """Find what grows from step to step, by its holder."""
    by_keeper: dict[str | None, list[Growth]] = {}
    for found in e.growing:
        if found.account.category not in OTHERS and not _is_a_result(e, found):
            by_keeper.setdefault(_keeper(e, found), []).append(found)
    for root, lines in by_keeper.items():
        slope = sum(g.slope for g in lines)
        place, kept = _kept_place(e, root, lines)
        held = e.freed_bytes(kept) or sum(g.last for g in lines)
        grown = sum(g.last - g.first for g in lines)
        if not e.worth(grown) and not (grown >= LEAST and _fills(e, LATER * slope)):
            continue
        line = next((g.account.line for g in lines if g.account.line), None)
        name = f"`{place}`" if place else "What no name holds"
        yield Finding(
            rule=RULE.name,
            title=f"{name} grows by {fmt(slope)} with every step and holds {fmt(held)}",
            evidence=f"More of it is left from step to step, over {lines[0].steps} of them"
            f"{f', made at {line}' if line else ''}; in 1,000 steps that is {fmt(LATER * slope)}.",
            low=held,
            high=held,
            ground="exact",
            code=_code(e, root, place, kept),
        )


def _fills(e: Evidence, count: int) -> bool:
    return e.card_known and count >= OF_THE_CARD * e.trace.info.total_bytes


def _keeper(e: Evidence, growth: Growth) -> str | None:
    """Return the holder at the end of what grew, or else its local name.

    The latter if all of it is freed by then, or if no holder has most of it.
    """
    mine = _rows(e, growth)
    if not len(mine):
        return _variable_of(growth.account.holder)
    sizes: Counter[str] = Counter()
    for held in e.held_in(mine):
        best = held.holders[0]
        if best.kind in KEEPERS:
            sizes[best.root] += held.size
    total = int(e.card_ledger.allocations.requested[mine].sum())
    best_root, size = max(sizes.items(), key=lambda item: item[1], default=(None, 0))
    return best_root if size >= MOST * total else _variable_of(growth.account.holder)


def _is_a_result(e: Evidence, growth: Growth) -> bool:
    """Return whether growth is a graph's or a longer batch's.

    It is held by a graph, or it is one tensor that is longer each time.
    """
    rows = _rows(e, growth)
    held = e.held_in(rows)
    if held and all(h.holders[0].kind is HolderKind.GRAPH for h in held):
        return True
    if len(rows) != 1:
        return False
    if growth.account.born_in in ("forward", "inference") and not e.phases("backward"):
        return True  # as in decoding
    return _batches_grow(e)


def _batches_grow(e: Evidence) -> bool:
    """Return whether forwards take more at each step, in larger tensors.

    Most of their tensors must be larger.

    Where something is appended to earlier data, the other tensors have unchanged sizes.
    """
    a, ends = e.card_ledger.allocations, update_positions(e.card_ledger)[1:]
    rows = np.flatnonzero(
        e.card_ledger.phases.named(e.card_ledger.born_in, "forward") & (a.allocated_at >= 0)
    )
    step = np.searchsorted(ends, a.allocated_at[rows])
    made = [Counter(a.requested[rows[step == at]].tolist()) for at in range(1, len(ends))]
    taken = [sum(size * count for size, count in sizes.items()) for sizes in made]
    pairs = list(pairwise(made))
    as_before = sum((one & other).total() for one, other in pairs)
    larger = all(one <= other for one, other in pairwise(taken)) and taken[-1:] > taken[:1]
    return larger and as_before < AS_BEFORE * sum(one.total() for one, _ in pairs)


def _rows(e: Evidence, growth: Growth) -> Ints:
    """Return the allocations of a growth that live at the end."""
    rows, wanted = e.card_ledger.live(e.card_ledger.events), growth.account
    found, index = group_by_account(e.card_ledger, rows)
    alike = [a.holder == wanted.holder if wanted.holder is not None else a == wanted for a in found]
    mine: Ints = rows[np.array(alike, bool)[index]]
    return mine


def _variable_of(holder: str | None) -> str | None:
    """Return the variable in a holder's name, or None.

    `history` of `history[...]['loss']`; None for names from a call alone (`input args[...]`).
    """
    root = None if holder is None else holder.partition("[")[0].partition(".")[0]
    return root if root and (root.isidentifier() or root.startswith("local ")) else None


def _kept_place(
    e: Evidence, root: str | None, lines: list[Growth]
) -> tuple[str | None, list[HeldStorage]]:
    """Return the place inside a root that keeps the growth.

    An example is `net.memo`. Also returns the storages that are freed with it.
    """
    rows = {int(row) for growth in lines for row in _rows(e, growth)}
    alone = [] if root is None else e.held_only_by(*KEEPERS, root=root)
    mine = [held for held in alone if e.row_of(held) in rows]
    if root is None or not mine:
        return root, mine
    paths = [held.name_in(root) for held in mine]
    place = _shared(min(paths), max(paths))
    while len(place) > len(root) and not _is_whole(place, paths):
        place = place[: max(place.rfind("."), place.rfind("["))]
    place = place.removesuffix("[...]")  # a path that is too long to write
    return (place if place.startswith(root) else root), mine


def _shared(first: str, last: str) -> str:
    """Return the common prefix of two texts.

    If they are the first and last of a sorted list, it is common to all.
    """
    alike = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    )
    return first[:alike]


def _is_whole(place: str, paths: list[str]) -> bool:
    """Return whether a common prefix of paths ends at a name or key."""
    ends = all(path[len(place) : len(place) + 1] in ("", ".", "[") for path in paths)
    return ends and place.count("[") == place.count("]")


def _code(e: Evidence, root: str | None, place: str | None, kept: list[HeldStorage]) -> str | None:
    """Return code that takes what is kept off the card, or None.

    None unless it is a tensor, or a list of tensors, with a name.
    """
    if e.trace.info.kind == "cpu":
        return None  # it is in the host's memory already
    if root is None or place is None or not kept or not is_expression(place):
        return None
    paths = [held.name_in(root) for held in kept]
    if paths == [place]:
        return f"{place} = {place}.cpu()   # and join only x.detach().cpu() to it"
    count = items_of(place, paths)
    if count is None:
        return None
    return (
        f"for i in range({count}):   # and append only {e.item_of(place) or 'x'}.detach().cpu()\n"
        f"    {place}[i] = {place}[i].cpu()"
    )


RULE = Rule(name="grows_each_step", text=__doc__, check=check, anywhere=True)
