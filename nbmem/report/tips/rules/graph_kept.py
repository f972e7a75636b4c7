"""A loss or an output is kept with its whole graph, step after step.

What it sees
    Results of three or more forward passes that still live at the end, because a sum or a list
    holds the graph that made them (`total = total + loss`, `outputs.append(out)`).
What it costs
    All activations of every pass: it grows until the card is full.
Do instead
    Keep `loss.detach()` (no synchronisation) or `loss.item()`; validate under `torch.no_grad()`.
When to ignore it
    You call backward() on the sum of all these passes later.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HolderKind
from nbmem.core.session.tensor_names import in_traceback
from nbmem.report.analysis.program_names import is_expression, items_of
from nbmem.report.model import Finding
from nbmem.report.tips.rule import Rule, fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from nbmem.report.tips.evidence import Evidence

    Ints = NDArray[np.int64]

FEWEST = 3
"""Passes whose results are live at one moment."""
_GRAPH_OF = "the graph of "
_ITEM = re.compile(r"(.+)\[\d+\]")


def check(e: Evidence) -> Iterator[Finding]:
    """Find activations of several passes at the end, and their holders."""
    rows, passes = _kept(e)
    if passes < FEWEST:
        return
    a = e.card_ledger.allocations
    size = int(a.block[rows].sum())
    named = _named(e, {int(row) for row in rows})
    if not named:
        kept = [way for held in e.held_in(rows) for way in held.holders]
        if e.worth(size) and not any(in_traceback(way.path) for way in kept):
            yield _finding(None, size, passes, size)
        return
    for root, paths, freed in named:
        if e.worth(freed):
            lists = {match[1] for path in paths if (match := _ITEM.fullmatch(path)) is not None}
            item = e.item_of(min(lists)) if lists else root
            item = item if item is not None and item.isidentifier() else None
            code = _code(paths, lists, item or "x")
            yield _finding(root, freed, passes, size, item=item, code=code)


def _code(paths: set[str], lists: set[str], item: str) -> str | None:
    """Return code that detaches what is kept, or None.

    None unless it is a name, a list or a plain path from a name.
    """
    if len(paths) == 1 and not lists and is_expression(path := min(paths)):
        return f"{path} = {path}.detach()   # and from now on keep only {path}.detach()"
    if len(lists) == 1 and is_expression(kept := min(lists)):
        count = items_of(kept, paths)
        if count is not None:
            return (
                f"for i in range({count}):   # and append only {item}.detach()\n"
                f"    {kept}[i] = {kept}[i].detach()"
            )
    return None


def _finding(  # noqa: PLR0913 - the parts of one sentence
    root: str | None,
    freed: int,
    passes: int,
    size: int,
    *,
    item: str | None = None,
    code: str | None = None,
) -> Finding:
    name = f"`{root}`" if root else "Something"
    each = f"about {fmt(size // passes)} a pass"
    return Finding(
        rule="graph_kept",
        title=f"{name} keeps the graphs of {passes} forward passes: {fmt(freed)}; "
        f"keep {f'{item}.detach()' if item else 'detached values'} instead",
        evidence=f"Activations of {passes} forward passes live at the end, {each}, and no backward "
        f"has freed them; {f'the graph of {root}' if root else 'a graph'} keeps them.",
        low=freed,
        high=freed,
        ground="exact",
        code=code,
    )


def passes_kept(e: Evidence) -> int:
    """Count the forward passes whose activations live at the end."""
    return _kept(e)[1]


def _kept(e: Evidence) -> tuple[Ints, int]:
    """Return the activations of forwards that live at the end.

    Also returns the number of passes.
    """
    card_ledger = e.card_ledger
    rows = card_ledger.live(card_ledger.events)
    rows = rows[card_ledger.category[rows] == Category.ACTIVATIONS]
    rows = rows[~e.in_gradient_cycle[rows]]  # a rule of its own
    rows = rows[card_ledger.phases.named(card_ledger.born_in[rows], "forward")]
    sizes: Counter[int] = Counter()
    blocks = card_ledger.allocations.block[rows].tolist()
    for phase, block in zip(card_ledger.born_in[rows].tolist(), blocks, strict=True):
        sizes[phase] += block
    return rows, sum(e.worth(FEWEST * size) for size in sizes.values())


def _named(e: Evidence, rows: set[int]) -> list[tuple[str, set[str], int]]:
    """Return the names whose graphs keep these rows.

    With each come its paths, and the bytes that detaching them frees.
    """
    roots: dict[str, set[str]] = {}
    for held in e.held:
        if e.row_of(held) in rows:
            for way in held.holders:
                if way.kind is HolderKind.GRAPH and not in_traceback(way.path):
                    roots.setdefault(way.root, set()).add(way.path.removeprefix(_GRAPH_OF))
    return [
        (root, paths, e.freed_bytes(e.held_only_by(HolderKind.GRAPH, root=root)))
        for root, paths in roots.items()
    ]


RULE = Rule(name="graph_kept", text=__doc__, check=check, anywhere=True)
