"""A loss or an output is kept with its whole graph, step after step.

What it sees
    What graphs of three or more forward passes keep at the end, because a sum, a list or a state
    holds them (`total = total + loss`, `outputs.append(out)`, `self.state = h`). The bytes are all
    that go with them: activations, inputs, earlier states. A loop's own variable that was computed
    from them is not named.
What it costs
    All activations of every pass: it grows until the card is full.
Do instead
    Keep `loss.detach()` (no synchronisation) or `loss.item()`; validate under `torch.no_grad()`.
    Detach a recurrent state before the next forward: `state = state.detach()`. Where a training
    has run no backward yet: call it on the loss of each pass, in place of their sum.
When to ignore it
    You call backward() on the sum of all these passes later.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HeldStorage, HolderKind
from nbmem.core.session.tensor_names import in_traceback, is_context
from nbmem.report.analysis.graph_holders import GraphHolders, join_by_graph
from nbmem.report.analysis.growth_candidates import (
    Candidate,
    common_place,
    merge_by_root,
    with_parts,
)
from nbmem.report.analysis.program_names import is_expression, items_of
from nbmem.report.tips.detectors.shared_variables import item_of
from nbmem.report.tips.detectors.unreachable_tensors import unreachable_tensors
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

FEWEST = 3
"""Passes whose results are live at one moment."""
MOSTLY = 0.75
"""Part of what is kept that a line leaves behind, from which that line is told alone."""
MANY, PART = 16, 0.1
"""Passes that count although each keeps little: those of a tenth of the largest one, or more."""


def check(e: Evidence) -> Findings:
    """Find what graphs of several passes keep at the end, and their holders."""
    graphs = [one for one in e.candidates if one.by_graph and one.root is not None]
    found = [one for one in merge_by_root(graphs) if _passes(e, one.rows) >= FEWEST]
    for holders in join_by_graph(e.card_ledger, found, e.candidates):
        freed = e.freed_bytes(held for held in e.held if _is_freed(held, holders))
        if e.worth(freed):
            yield _finding(
                freed,
                _passes(e, holders.carriers[0].rows),
                kept=[(_name(e, one), _item(e, one)) for one in holders.carriers],
                code=None if _waits(e) else _code(e, holders),
                waits=_waits(e),
            )
    rows = _activations(e)
    size = int(e.card_ledger.allocations.block[rows].sum())
    ways = [way.path for held in e.held_in(rows) for way in held.holders]
    passes = 0 if graphs or any(map(in_traceback, ways)) else passes_kept(e)
    if passes >= FEWEST and e.worth(size):
        contexts = sorted({way for way in ways if is_context(way)})
        left = None if contexts else unreachable_tensors(e)
        if left is not None and e.freed_bytes(e.held_in(left.rows)) >= MOSTLY * size:
            return  # the line that leaves them behind says more
        yield _finding(size, passes, kept=[(way, None) for way in contexts], code=None)


def _is_freed(held: HeldStorage, holders: GraphHolders) -> bool:
    """Return whether detaching the carriers frees a storage.

    The results are deleted as well.
    """
    results = {one.root for one in holders.results}
    graphs = results | {one.root for one in holders.carriers}
    return all(
        way.root in (graphs if way.kind is HolderKind.GRAPH else results) for way in held.holders
    )


def _waits(e: Evidence) -> bool:
    """Return whether the first backward of a training may still come."""
    return bool(e.optimizers) and not e.phases("backward")


def _name(e: Evidence, candidate: Candidate) -> str:
    parts = candidate.parts(e.card_ledger.allocations.block)
    return f"{with_parts(common_place(candidate.paths), parts)}{candidate.where}"


def _item(e: Evidence, candidate: Candidate) -> str | None:
    """Return the name of what a list receives, or of a single tensor."""
    place = common_place(candidate.paths)
    name = item_of(e.held, place) if len(set(candidate.paths)) > 1 else place
    return name if name is not None and is_expression(name) else None


def _code(e: Evidence, holders: GraphHolders) -> str | None:
    """Return code that detaches what is kept, or None.

    None unless each is a name, a list or a plain path from a name.
    """
    lines = [_detach(e, one) for one in holders.carriers]
    lines += [f"del {common_place(one.paths)}" for one in holders.results]
    names = [common_place(one.paths) for one in holders.results]
    if len(lines) > 1 and any(common_place(one.paths).endswith("]") for one in holders.carriers):
        return None  # a tuple's item cannot be assigned
    if None in lines or any(one.where for one in (*holders.carriers, *holders.results)):
        return None
    return "\n".join(map(str, lines)) if all(map(str.isidentifier, names)) else None


def _detach(e: Evidence, candidate: Candidate) -> str | None:
    paths, place = set(candidate.paths), common_place(candidate.paths)
    if not is_expression(place):
        return None
    if paths == {place}:
        return f"{place} = {place}.detach()   # and from now on keep only {place}.detach()"
    count = items_of(place, paths)
    if count is None:
        return None
    return (
        f"for i in range({count}):   # and append only {_item(e, candidate) or 'x'}.detach()\n"
        f"    {place}[i] = {place}[i].detach()"
    )


def _finding(
    freed: int,
    passes: int,
    *,
    kept: list[tuple[str, str | None]],
    code: str | None,
    waits: bool = False,
) -> Finding:
    names = " and ".join(name for name, _ in kept) or "Something"
    known = [f"{item}.detach()" for _, item in kept if item is not None]
    all_known = known and len(known) == len(kept)
    instead = " and ".join(known) if all_known else "values from .detach() or .item()"
    keep, why = f"keep {instead} instead", ""
    if waits:
        keep = "call backward() on each pass's loss"
        why = (
            " Called on each, it frees the graph of each, and the gradients add up to the same. "
            f"What is not for training: keep {instead} instead."
        )
    return RULE.finding(
        title=f"{names} {'keep' if len(kept) > 1 else 'keeps'} the graphs of {passes} forward "
        f"passes: {fmt(freed)}; {keep}",
        evidence=f"What {passes} forward passes saved for backward lives at the end, about "
        f"{fmt(freed // passes)} a pass, and no backward has freed it; "
        f"{f'the graph of {names}' if kept else 'a graph'} keeps it.{why}",
        saves=exact(freed),
        code=code,
    )


def passes_kept(e: Evidence) -> int:
    """Count the forward passes whose activations live at the end."""
    return _passes(e, _activations(e))


def _activations(e: Evidence) -> Ints:
    """Return the activations of forwards that live at the end."""
    card_ledger = e.card_ledger
    rows = card_ledger.live(card_ledger.events)
    rows = rows[~e.in_gradient_cycle[rows]]  # a rule of its own
    made = card_ledger.phases.named(card_ledger.born_in[rows], "forward")
    found: Ints = rows[made & (card_ledger.category[rows] == Category.ACTIVATIONS)]
    return found


def _passes(e: Evidence, rows: Ints) -> int:
    """Count the forward passes of which much is among some allocations.

    Where that is more, count the passes of a loop in which something was computed behind the call
    of backward.
    """
    phases, born_in = e.card_ledger.phases, e.card_ledger.born_in
    forward = rows[phases.named(born_in[rows], "forward")]
    behind = rows[phases.named(born_in[rows], "backward")]
    passes = np.array(phases.passes, np.int64)[born_in[behind]]
    return max(_count(e, forward, born_in[forward]), _count(e, behind, passes))


def _count(e: Evidence, rows: Ints, passes: Ints) -> int:
    sizes: Counter[int] = Counter()
    blocks = e.card_ledger.allocations.block[rows].tolist()
    for number, block in zip(passes.tolist(), blocks, strict=True):
        sizes[number] += block
    large = sum(e.worth(FEWEST * size) for size in sizes.values())
    if large >= FEWEST or not e.worth(sum(sizes.values())):
        return large
    similar = sum(size >= PART * max(sizes.values()) for size in sizes.values())
    return similar if similar >= MANY else large


RULE = Rule(name="graph_kept", text=__doc__, check=check, anywhere=True, of_growth=True)
