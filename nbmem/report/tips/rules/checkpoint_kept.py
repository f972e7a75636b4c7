"""A checkpoint stays on the card after it was loaded into the model.

What it sees
    A dictionary of the program (or what torch.load made) that holds tensors of the same names,
    shapes and types as the model's weights, in storages of its own. Its other names
    (`state_dict = checkpoint["model"]`) are told with it. Names that tell of a purpose (best,
    initial, backup, ...) are left alone.
What it costs
    A second copy of the weights, and of the optimizer's state if that is in it, for as long as the
    names live.
Do instead
    `del checkpoint, state_dict` behind `load_state_dict`: all of its names, or nothing is freed.
    Next time load it with `map_location="cpu"`: the copy then never reaches the card.
When to ignore it
    You still compare the model with it, or load it again soon.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.source_files import with_slashes
from nbmem.report.analysis.allocation_lines import allocation_place
from nbmem.report.model import Command
from nbmem.report.tips.detectors.shared_variables import shared_tensors
from nbmem.report.tips.purpose_names import marks_intended_copy
from nbmem.report.tips.rule import Findings, Rule, exact, fmt
from nbmem.report.tips.weight_names import (
    OWNED,
    WeightNames,
    last_key,
    shared_prefix,
)

if TYPE_CHECKING:
    from nbmem.core.session.events import Stack
    from nbmem.core.session.holders import HeldStorage
    from nbmem.report.tips.evidence import Evidence

ALIKE = 0.8
"""Part of a dictionary's bytes that must match weights."""
_TOGETHER = re.compile(r"^(.*)\.\* of (\d+) tensors$")


def check(e: Evidence) -> Findings:
    """Find dictionaries that look like the model's weights.

    If there are none, use what torch.load made.
    """
    found = list(_named(e))
    yield from found
    if not found:
        yield from _by_stacks(e)


def _named(e: Evidence) -> Findings:
    weights = WeightNames(e.weight_forms if e.held else {})

    def has_weight_form(held: HeldStorage) -> bool:
        return held.form in weights.forms and bool(_keys(held)) and not _is_owned(e, held)

    for copy in shared_tensors(e.held, has_weight_form):
        mine, listed = copy.storages, copy.listed
        # what an optimizer has loaded, and replaced since, has the forms of weights, too
        alike = [held for held in mine if held.form in weights.forms and _keys(held)]
        alike += _joined(e, mine)
        prefix = shared_prefix(key for s in alike for key in _keys(s))
        matched = sum(any(weights.match(key, s.form, prefix) for key in _keys(s)) for s in alike)
        freed, size = e.freed_bytes(mine), sum(s.size for s in mine)
        if not matched or sum(s.size for s in alike) < ALIKE * size or not e.worth(freed):
            continue
        if any(marks_intended_copy(variable.name) for variable in copy.variables):
            continue
        is_global = copy.functions == [""]
        where = "" if is_global else f" in {copy.functions[-1]}"
        names = tuple(variable.name for variable in copy.variables)
        can_free = is_global and all(map(str.isidentifier, names))
        yield RULE.finding(
            title=f"`{copy.code}`{where} gives back {fmt(freed)}",
            evidence=f"{listed} hold{'s' * (len(names) == 1)} {len(mine)} tensors; {matched} of "
            "them have the name, shape and type of a weight of the model, which has its own copy. "
            f"Nothing but {listed} keep{'s' * (len(names) == 1)} them.",
            saves=exact(freed),
            code=f'{copy.code}   # once it is loaded; or load it with map_location="cpu"',
            command=Command(name="free", arguments=names) if can_free else None,
        )


def _is_owned(e: Evidence, held: HeldStorage) -> bool:
    """Return whether a model or an optimizer uses a storage, or did."""
    row = e.row_of(held)
    return row is not None and e.card_ledger.category[row] in OWNED


def _keys(held: HeldStorage) -> list[str]:
    """Return the last keys of the paths to a storage."""
    return [key for holder in held.holders if (key := last_key(holder.path)) is not None]


def _joined(e: Evidence, mine: list[HeldStorage]) -> Iterator[HeldStorage]:
    """Yield a dictionary's tensors that the model has in one storage.

    A recurrent layer stores its weights this way.
    """
    storage_labels = e.trace.storage_labels
    of_module: dict[str, list[HeldStorage]] = {}
    for held in mine:
        for key in _keys(held)[:1]:
            of_module.setdefault(key.rpartition(".")[0], []).append(held)
    weights = storage_labels.category == Category.WEIGHTS
    seen = zip(
        storage_labels.name[weights].tolist(), storage_labels.size[weights].tolist(), strict=True
    )
    for name, size in sorted(set(seen)):
        together = _TOGETHER.match(e.session.names[name])
        if together is None:
            continue
        for inner, parts in list(of_module.items()):
            theirs = f".{together[1]}".endswith(f".{inner}") and len(parts) == int(together[2])
            if theirs and ALIKE * size <= sum(s.size for s in parts) <= size:
                yield from of_module.pop(inner)


def _by_stacks(e: Evidence) -> Findings:
    """Find what torch.load made, beside an older set of the same sizes.

    Rows that became a weight, a buffer or optimizer state do not count.
    """
    a = e.card_ledger.allocations
    loaded = e.rows_with_stack(by_torch_load)
    kept = loaded[
        (a.freed[loaded] >= e.card_ledger.events) & ~np.isin(e.card_ledger.category[loaded], OWNED)
    ]
    if not len(kept):
        return
    before = (a.allocated_at < a.allocated_at[kept[0]]) & (a.freed >= e.card_ledger.events)
    others = Counter(a.requested[before].tolist())
    mine = Counter(a.requested[kept].tolist())
    shared = sum(size * min(count, others[size]) for size, count in mine.items())
    freed = int(a.block[kept].sum())
    if shared < ALIKE * int(a.requested[kept].sum()) or not e.worth(freed):
        return
    where = line_of_load(e, int(kept[0]))
    yield RULE.finding(
        title=f"Delete the checkpoint that was loaded{where}: it gives back {fmt(freed)}",
        evidence=f"torch.load made {len(kept)} tensors on the card that still live at the end; the "
        "model had a set of the same sizes before, and went on with its own.",
        saves=exact(freed),
        code=f'# {where.strip() or "next time"}: torch.load(..., map_location="cpu")',
    )


def by_torch_load(stack: Stack) -> bool:
    """Return whether a stack shows that torch.load made an allocation."""
    files = (with_slashes(frame.file) for frame in stack if frame.function == "load")
    return any(file.endswith("torch/serialization.py") for file in files)


def line_of_load(e: Evidence, row: int) -> str:
    """Return ` at train.py:12`, the user's line that loads, or no text."""
    line = allocation_place(e.card_ledger, row)
    return f" at {line}" if line else ""


RULE = Rule(name="checkpoint_kept", text=__doc__, check=check, anywhere=True, of_loading=True)
