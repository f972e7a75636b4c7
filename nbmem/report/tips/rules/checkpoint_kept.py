"""A checkpoint stays on the card after it was loaded into the model.

What it sees
    A dictionary of the notebook (or what torch.load made) that holds tensors of the same names,
    shapes and types as the model's weights, in storages of its own. Names that tell of a purpose
    (best, initial, backup, ...) are left alone.
What it costs
    A second copy of the weights, and of the optimizer's state if that is in it, for as long as the
    name lives.
Do instead
    `del checkpoint` behind `load_state_dict`. Next time load it with `map_location="cpu"`: the copy
    then never reaches the card.
When to ignore it
    You still compare the model with it, or load it again soon.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HolderKind
from nbmem.core.session.source_files import with_slashes
from nbmem.core.session.tensor_names import VIEW
from nbmem.report.model import Command, Finding
from nbmem.report.tips.purpose_names import marks_intended_copy
from nbmem.report.tips.rule import Rule, fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.core.session.events import Stack
    from nbmem.core.session.holders import HeldStorage
    from nbmem.report.tips.evidence import Evidence

ALIKE = 0.8
"""Part of a dictionary's bytes that must match weights."""
_KEY = re.compile(r"\['([^']*)'\]$")
_TOGETHER = re.compile(r"^(.*)\.\* of (\d+) tensors$")
_NAMED = re.compile(r"^(.*?) (\([\d, ]*\) \w+)$")


def check(e: Evidence) -> Iterator[Finding]:
    """Find dictionaries that look like the model's weights.

    If there are none, use what torch.load made.
    """
    found = list(_named(e))
    yield from found
    if not found:
        yield from _by_stacks(e)


def _named(e: Evidence) -> Iterator[Finding]:
    roots = dict.fromkeys(h.root for s in e.held for h in s.holders if h.kind is HolderKind.NAME)
    weights = weight_forms(e) if roots else {}
    forms, ends = set(weights.values()), _ends(weights)
    for root in roots if weights else ():
        if marks_intended_copy(root):
            continue
        mine = e.held_only_by(HolderKind.NAME, root=root)
        keys = {s.addr: _key(s, root) for s in mine}
        alike = [s for s in mine if keys[s.addr] is not None and s.form in forms]
        alike += _joined(e, mine, keys)
        as_weights = [s for s in alike if _is_weight(ends, keys[s.addr], s.form)]
        size = sum(s.size for s in mine)
        if not as_weights or sum(s.size for s in alike) < ALIKE * size:
            continue
        freed = e.freed_bytes(mine)
        if e.worth(freed):
            plain = root.isidentifier()
            yield Finding(
                rule=RULE.name,
                title=f"`del {root}` gives back {fmt(freed)}",
                evidence=f"{root} holds {len(mine)} tensors; {len(as_weights)} of them "
                "have the name, shape and type of a weight of the model, which has its own copy. "
                f"Nothing but {root} keeps them.",
                low=freed,
                high=freed,
                ground="exact",
                code=f"del {root}   # once load_state_dict has copied it" if plain else None,
                command=Command(name="free", arguments=(root,)) if plain else None,
            )


def weight_forms(e: Evidence) -> dict[str, str]:
    """Return the shape and type of each weight seen, by its name.

    It is the name in the notebook.
    """
    identities = e.trace.identities
    rows = np.flatnonzero(identities.category == Category.WEIGHTS)
    found = {}
    for index in np.unique(identities.name[rows]).tolist():
        match = _NAMED.match(e.session.names[index].removesuffix(VIEW))
        if match is not None:
            found[match[1]] = match[2]
    return found


def _key(held: HeldStorage, root: str) -> str | None:
    """Return the last key of the path from a root, or None.

    None if the path does not end in a key.
    """
    path = next(h.path for h in held.holders if h.root == root)
    match = _KEY.search(path)
    return None if match is None else match[1]


def _joined(
    e: Evidence, mine: list[HeldStorage], keys: dict[int, str | None]
) -> Iterator[HeldStorage]:
    """Yield a dictionary's tensors that the model has in one storage.

    A recurrent layer stores its weights this way.
    """
    identities = e.trace.identities
    of_module: dict[str, list[HeldStorage]] = {}
    for held in mine:
        key = keys[held.addr]
        if key is not None:
            of_module.setdefault(key.rpartition(".")[0], []).append(held)
    weights = identities.category == Category.WEIGHTS
    seen = zip(identities.name[weights].tolist(), identities.size[weights].tolist(), strict=True)
    for name, size in sorted(set(seen)):
        together = _TOGETHER.match(e.session.names[name])
        if together is None:
            continue
        for inner, parts in list(of_module.items()):
            theirs = f".{together[1]}".endswith(f".{inner}") and len(parts) == int(together[2])
            if theirs and ALIKE * size <= sum(s.size for s in parts) <= size:
                yield from of_module.pop(inner)


def _ends(weights: dict[str, str]) -> list[str]:
    """Return each weight's form and reversed name, sorted for bisection.

    A checkpoint has as many keys as the model has weights; comparing all pairs takes minutes.
    """
    return sorted(f"{form}\n{name[::-1]}" for name, form in weights.items())


def _is_weight(ends: list[str], key: str | None, form: str) -> bool:
    """Return whether a weight of this form has a name that ends in a key."""
    wanted = f"{form}\n{str(key)[::-1]}."
    at = bisect_left(ends, wanted)
    return at < len(ends) and ends[at].startswith(wanted)


def _by_stacks(e: Evidence) -> Iterator[Finding]:
    """Find what torch.load made, beside an older set of the same sizes.

    Rows that became a weight, a buffer or optimizer state do not count.
    """
    a = e.card_ledger.allocations
    loaded = e.rows_with_stack(by_torch_load)
    owned = (Category.WEIGHTS, Category.BUFFERS, Category.OPTIMIZER_STATE)
    kept = loaded[
        (a.freed[loaded] >= e.card_ledger.events) & ~np.isin(e.card_ledger.category[loaded], owned)
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
    yield Finding(
        rule=RULE.name,
        title=f"Delete the checkpoint that was loaded{where}: it gives back {fmt(freed)}",
        evidence=f"torch.load made {len(kept)} tensors on the card that still live at the end; the "
        "model had a set of the same sizes before, and went on with its own.",
        low=freed,
        high=freed,
        ground="exact",
        code=f'# {where.strip() or "next time"}: torch.load(..., map_location="cpu")',
    )


def by_torch_load(stack: Stack) -> bool:
    """Return whether a stack shows that torch.load made an allocation."""
    files = (with_slashes(frame.file) for frame in stack if frame.function == "load")
    return any(file.endswith("torch/serialization.py") for file in files)


def line_of_load(e: Evidence, row: int) -> str:
    """Return ` at train.py:12`, the user's line that loads, or no text."""
    from nbmem.report.analysis.source_lines import users_line

    stack = int(e.card_ledger.allocations.stack[row])
    line = users_line(e.session.stacks[stack]) if stack >= 0 else None
    return f" at {line}" if line else ""


RULE = Rule(name="checkpoint_kept", text=__doc__, check=check, anywhere=True)
