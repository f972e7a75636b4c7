"""A checkpoint was loaded onto the card before the model copied it.

What it sees
    Tensors that torch.load made on the card and that were gone again before the end, if stacks were
    taken (`%%memtrace --stacks`). Without stacks: a dictionary from before the first forward with
    the names, shapes and types of weights, also one in a function that has ended. Or tensors with
    the sizes of the weights, in their order, that were made behind them and freed together.
What it costs
    While it loads, the card holds the weights twice. Often that is the highest moment of a run that
    only predicts; and the segments taken for it stay reserved.
Do instead
    `torch.load(path, map_location="cpu")`; with `mmap=True` it does not fill the host either.
When to ignore it
    The peak of the run lies elsewhere and its reserved bytes are used again later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.tips.detectors.loaded_copies import copies_of_weights
from nbmem.report.tips.detectors.shared_variables import Variable, named_variable
from nbmem.report.tips.purpose_names import marks_intended_copy
from nbmem.report.tips.rule import Findings, Rule, exact, fmt
from nbmem.report.tips.rules.checkpoint_kept import by_torch_load, line_of_load
from nbmem.report.tips.weight_names import (
    OWNED,
    WeightNames,
    last_key,
    split_name,
)

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find what torch.load made and that was freed later.

    It is reported if it made the peak, if memory is short, or if all tips are requested.
    """
    a = e.card_ledger.allocations
    loaded, origin = e.rows_with_stack(by_torch_load), "torch.load made"
    if not len(loaded):
        loaded, origin = _named_as_weights(e)
    if not len(loaded):
        loaded, origin = copies_of_weights(e), "Before the first forward there were"
    loaded = loaded[(a.freed[loaded] < e.card_ledger.events) & (a.allocated_at[loaded] >= 0)]
    loaded = loaded[~np.isin(e.card_ledger.category[loaded], OWNED)]
    if not len(loaded):
        return
    at = int(a.allocated_at[loaded].max()) + 1
    there = loaded[(a.allocated_at[loaded] < at) & (a.freed[loaded] >= at)]
    size = int(a.block[there].sum())
    at_peak = e.peak_saving(there)
    if not e.worth(size) or not (e.worth(at_peak) or e.short or e.everything):
        return
    where = line_of_load(e, int(there[0]))
    yield RULE.finding(
        title=f'Load the checkpoint with map_location="cpu"{where}: {fmt(size)} less '
        f"{'at the peak' if at_peak == size else 'while it loads'}",
        evidence=f"{origin} {len(there)} tensors on the card{where}"
        f"; they held {fmt(size)} beside the model's own weights and were freed later. "
        f"At the peak that is {fmt(at_peak)}.",
        saves=exact(at_peak, size),
        code=f'#{where or " next time"}: torch.load(..., map_location="cpu", mmap=True)',
    )


def _named_as_weights(e: Evidence) -> tuple[Ints, str]:
    """Return tensors from before the first forward with the names of weights.

    Also returns a text that says what held them: `state_dict in main() held`.
    """
    card_ledger = e.card_ledger
    weights = WeightNames(e.weight_forms)
    found: dict[Variable, list[int]] = {}
    early = card_ledger.phases.named(card_ledger.born_in, "load")
    freed = card_ledger.allocations.freed < card_ledger.events
    rows = np.flatnonzero(early & freed & (card_ledger.category == Category.USER_TENSORS))
    for row in rows.tolist():
        path, form = split_name(card_ledger.name(row) or "") or ("", "")
        key, variable = last_key(path), named_variable(path)
        if key is not None and variable is not None and weights.match(key, form):
            found.setdefault(variable, []).append(row)
    size = card_ledger.allocations.block
    variable = max(found, key=lambda one: int(size[found[one]].sum()), default=None)
    if variable is None or marks_intended_copy(variable.name):
        return np.zeros(0, np.int64), ""
    where = f" in {variable.function}" if variable.function else ""
    return np.array(found[variable], np.int64), f"{variable.name}{where} held"


RULE = Rule(name="checkpoint_on_gpu", text=__doc__, check=check, of_loading=True)
