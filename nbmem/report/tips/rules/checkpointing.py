"""Activations dominate: recompute the repeated blocks.

What it sees
    Activations that are half of the peak or more where memory is short, and a list of blocks of one
    class in the model that keep them. The names of the activations say which block each is of;
    without names, those of equal blocks repeat in the events.
What it costs
    Checkpointing keeps one input for each block and computes its forward once more in backward:
    about a third more time.
Do instead
    The library's own call: `gradient_checkpointing_enable()` of transformers and
    `enable_gradient_checkpointing()` of diffusers. In other models `torch.utils.checkpoint` around
    each block of the list that is named.
When to ignore it
    A smaller batch with accumulation is as good for you and costs no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.block_activations import BlockActivations, block_activations
from nbmem.report.analysis.checkpointed_modules import is_switched_off
from nbmem.report.analysis.library_calls import checkpointing_call
from nbmem.report.analysis.program_names import blocks_of, checkpoint_code
from nbmem.report.tips.detectors.checkpointed_blocks import checkpointing_saving
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.5
MOST_ROWS = 6_000
"""Activations that are searched for a repetition."""
FEWEST = 3
"""Number of blocks below which nothing repeats."""


def check(e: Evidence) -> Findings:
    """Find the blocks that keep most, by names, or else by what repeats."""
    model = e.model()
    forward = e.phases("forward")
    if (
        model is None
        or not forward
        or e.phases("recompute")
        or is_switched_off(e.session, model)
        or any(r.depth for r in e.report.phases)
    ):
        return
    kept = e.report.ledger_at_peak[Category.ACTIVATIONS]
    if not e.dominates(kept, SHARE):
        return
    named = block_activations(e.card_ledger, model)
    found = None if named is None else _of_named(e, named, kept)
    if found is not None:
        yield found
    elif named is None:
        yield from _of_repeated(e, model, kept)


def _of_named(e: Evidence, found: BlockActivations, kept: int) -> Finding | None:
    """Return the tip for blocks whose activations have names, or None."""
    size = e.card_ledger.allocations.block
    sums = [int(size[rows].sum()) for rows in found.blocks]
    low, high = checkpointing_saving(e, found)
    if low <= 0 or not e.worth(low):
        return None
    own = "" if not found.path else f".{found.path}"
    return RULE.finding(
        title=f"Checkpoint the blocks of `{e.model_name()}{own}`: {fmt_range(low, high)} less",
        evidence=f"Activations are {fmt(kept)} of the {fmt(e.report.peak.allocated)} allocated at "
        f"the peak. A {found.kind} keeps up to {fmt(max(sums))}; checkpointed, it keeps its input "
        f"(at most {fmt(int(size[found.first].max()))}), and one block at a time is recomputed.",
        saves=estimated(low, high),
        code=found.code,
    )


def _of_repeated(e: Evidence, model: Mapping[str, Any], kept: int) -> Findings:
    """Yield the tip for blocks whose kept bytes repeat in the events."""
    sizes = _kept_sizes(e)
    best = None
    for block in model["blocks"]:
        found = _repeated(sizes, int(block["count"]))
        if found is not None and (best is None or found.sum() * block["count"] > best[0]):
            best = (int(found.sum()) * int(block["count"]), block, found)
    if best is None:
        return
    _, block, each = best
    count, one = int(block["count"]), int(each.sum())
    low = (count - 1) * one - count * int(each.max())
    high = (count - 1) * one
    if low <= 0 or not e.worth(low):
        return
    name = f"{e.model_name()}.{block['path']}" if block["path"] else e.model_name()
    yield RULE.finding(
        title=f"Checkpoint the {count} blocks of `{name}`: {fmt_range(low, high)} less",
        evidence=f"Activations are {fmt(kept)} of the {fmt(e.report.peak.allocated)} allocated at "
        f"the peak. Each {block['class']} keeps {fmt(one)}; checkpointed, it keeps its input "
        f"(at most {fmt(int(each.max()))}), and one block at a time is recomputed.",
        saves=estimated(low, high),
        code=checkpointing_call(model, block["path"])
        or checkpoint_code(blocks_of(model, block["path"])),
    )


def _kept_sizes(e: Evidence) -> Ints:
    """Return the activations' block bytes after the largest forward.

    In the order of allocation.
    """
    card_ledger = e.card_ledger
    ends = [card_ledger.bounds(s)[1] for _, s in card_ledger.phases.spans if s.name == "forward"]
    kinds = (Category.ACTIVATIONS,)
    end = max(ends, key=lambda p: e.sum_at(p, *kinds))
    rows = card_ledger.live(end)
    rows = rows[card_ledger.category[rows] == Category.ACTIVATIONS]
    rows = rows[np.argsort(card_ledger.allocations.allocated_at[rows])][:MOST_ROWS]
    blocks: Ints = card_ledger.allocations.block[rows]
    return blocks


def _repeated(sizes: Ints, count: int) -> Ints | None:
    """Return the sizes that repeat `count` times in a row, or None.

    Of several such lists, the one with the most bytes.
    """
    best: Ints | None = None
    if count < FEWEST:
        return None
    for period in range(1, len(sizes) // count + 1):
        same = sizes[:-period] == sizes[period:]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
        starts, ends = edges[::2], edges[1::2]
        fits = np.flatnonzero(ends - starts >= (count - 1) * period)
        if len(fits):
            one = sizes[starts[fits[0]] : starts[fits[0]] + period]
            if best is None or one.sum() > best.sum():
                best = one
    return best


RULE = Rule(name="checkpointing", text=__doc__, check=check, when="short", has_price=True)
