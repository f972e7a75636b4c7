"""Gradients with a graph keep dead models or earlier passes.

What it sees
    Tensors that nothing reaches but a gradient whose graph leads back to its own parameter.
    `backward(create_graph=True)` makes such gradients. It also sees graphs of earlier passes that
    such gradients keep. Where `zero_grad()` clears them in each pass, it is silent.
What it costs
    The whole model with its gradients, and what the graph has saved, until the process ends: the
    cycle lies in C++, so `gc.collect()` does not find it.
Do instead
    `p.grad = None` behind the last use of a gradient, for each parameter and for an input that
    needs one. Or `torch.autograd.grad(loss, parameters, create_graph=True)`, which puts nothing
    into `p.grad`.
When to ignore it
    You read the gradients of all passes together later.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.holders import HeldStorage, HolderKind
from nbmem.report.analysis.allocation_lines import allocation_place
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find tensors that only gradients with a graph keep.

    First those of dead models, then the graphs of earlier passes that live models' gradients keep.
    """
    mine = e.held_only_by(HolderKind.GRADIENT_CYCLE)
    yield from _finding(
        e,
        e.freed_bytes(mine),
        f"which not even gc.collect() frees{_made(e, mine)}",
        f"{len(mine)} tensors stay until the process ends. Each parameter (or input) has a "
        "gradient, whose graph leads back to it. Nothing else reaches them.",
    )
    graphs, gradients = _of_live_gradients(e)
    born, block = e.card_ledger.born_in, e.card_ledger.allocations.block
    names = e.card_ledger.phases.names
    last = max(np.flatnonzero(names == "forward").tolist(), default=0)
    first = last - (last > 0 and names[last - 1] == "input")
    if e.worth(int(block[graphs[born[graphs] < first]].sum())):
        rows = graphs[(born[graphs] < first) | (born[graphs] > last)]  # a loss keeps the last ones
        yield from _finding(
            e,
            int(block[rows].sum() + block[gradients].sum()),
            "of gradients and graphs of earlier passes",
            f"{len(rows)} tensors live at the end because gradients have a graph. Each backward "
            "adds to such a gradient, and the sum keeps the graphs of all passes.",
        )


def _made(e: Evidence, held: list[HeldStorage]) -> str:
    """Return ` (most of it made at train.py:22 in penalty)`, or no text."""
    sizes: Counter[str] = Counter()
    for one in held:
        row = e.row_of(one)
        place = None if row is None else allocation_place(e.card_ledger, row)
        if place is not None:
            sizes[place] += one.size
    return f" (most of it made at {sizes.most_common(1)[0][0]})" if sizes else ""


def _finding(e: Evidence, freed: int, what: str, evidence: str) -> Findings:
    if e.worth(freed):
        yield RULE.finding(
            title="`p.grad = None` behind each `backward(create_graph=True)`: "
            f"{fmt(freed)} less, {what}",
            evidence=evidence,
            saves=exact(freed),
            code=f"for p in {e.model_code() or 'model'}.parameters():"
            "   # behind the last use of p.grad\n    p.grad = None",
        )


def _of_live_gradients(e: Evidence) -> tuple[Ints, Ints]:
    """Return what the graphs of gradients keep, and those gradients."""
    graphs, gradients = [], []
    for held in e.held:
        row = e.row_of(held)
        kinds = {holder.kind for holder in held.holders if holder.path.endswith(".grad")}
        if row is None or not kinds:
            continue
        if kinds != {HolderKind.GRAPH}:
            gradients.append(row)
        elif all(holder.kind is HolderKind.GRAPH for holder in held.holders):
            graphs.append(row)
    return np.array(graphs, np.int64), np.array(gradients, np.int64)


RULE = Rule(name="gradient_cycle", text=__doc__, check=check, anywhere=True)
