"""Group what lived when a request failed, by name or line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HolderKind
from nbmem.core.session.tensor_names import LOCAL, is_graph_name, is_place, root_of
from nbmem.report.analysis.source_lines import users_line
from nbmem.report.model import HeldGroup

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.oom.failed_request import FailedRequest

TRACEBACK, OUT = "traceback", "out"
"""Names in `%nbmem free` for the traceback of a failed cell, and for IPython's results."""
_LOCALS = (HolderKind.FRAME, HolderKind.TRACEBACK)
_FREE_AS = {
    HolderKind.TRACEBACK: TRACEBACK,
    HolderKind.OUT: OUT,
    HolderKind.UNDERSCORE: OUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationGroup:
    """Allocations under one name or line, and how to free them.

    Attributes:
        held: Its description for the views.
        rows: The allocations.
        free: Argument of `%nbmem free` that releases them; None if it cannot. Of several variables
            their names, with `, ` between.
    """

    held: HeldGroup
    rows: Ints
    free: str | None


def groups(case: FailedRequest) -> list[AllocationGroup]:
    """Group the allocations that lived at the failure, largest group first."""
    card_ledger, a = case.card_ledger, case.card_ledger.allocations
    at_end = _holders_at_end(case)
    rows_by_key: dict[tuple[str | None, Category, str | None, bool, str | None], list[int]] = {}
    live = card_ledger.live(case.index)
    for row, this_step in zip(live.tolist(), case.of_this_step(live).tolist(), strict=True):
        category = Category(int(card_ledger.category[row]))
        name, free = card_ledger.name(row), None
        stack, place = int(a.stack[row]), is_place(name)
        root = None if name is None or place else root_of(name)
        if a.freed[row] == card_ledger.events and (holder := at_end.get(int(a.addr[row]))):
            if holder.local is not None and root is not None and root.startswith(LOCAL):
                root = holder.local
            # For an activation, the line that allocated it is more specific than a layer's local.
            local = None if category is Category.ACTIVATIONS else holder.local
            root = (holder.name or root) if is_graph_name(name) else (root or holder.name or local)
            free = holder.free
            if free == TRACEBACK and a.allocated_at[row] >= 0:
                free = None  # held by this failure's own traceback, which has its own line
        elif category is Category.USER_TENSORS:
            free = root
        line = None if root or stack < 0 else users_line(card_ledger.session.stacks[stack])
        if name is not None and place and root is line is None:
            root = root_of(name)
        older = category is Category.ACTIVATIONS and not this_step
        rows_by_key.setdefault((root, category, line, older, free), []).append(row)
    result = [
        AllocationGroup(
            held=HeldGroup(
                name=root,
                category=category,
                requested=int(a.requested[rows].sum()),
                count=len(rows),
                line=line,
                older=older,
            ),
            rows=np.array(rows, np.int64),
            free=free,
        )
        for (root, category, line, older, free), rows in rows_by_key.items()
    ]
    return sorted(result, key=lambda group: -group.held.requested)


class _HolderAtEnd(NamedTuple):
    """The holder of one storage at the end of the recording.

    Attributes:
        name: Name of the root; None for a traceback, which says less than the allocating line.
        free: Argument of `%nbmem free` that releases it, or None.
        local: Variable of the failed function that holds it, or None. It replaces an earlier name,
            which may be the loop's variable that was assigned anew.
    """

    name: str | None
    free: str | None
    local: str | None


def _holders_at_end(case: FailedRequest) -> dict[int, _HolderAtEnd]:
    """Map addresses to what holds their storages at the end."""
    card_ledger = case.card_ledger
    found: dict[int, _HolderAtEnd] = {}
    for held in card_ledger.storages:
        best, free = held.holders[0], None
        if all(holder.root == best.root for holder in held.holders):
            free = _FREE_AS.get(best.kind, best.root if best.kind is HolderKind.NAME else None)
        elif all(holder.kind is HolderKind.NAME for holder in held.holders):  # data and its slice
            free = ", ".join(dict.fromkeys(holder.root for holder in held.holders))
        is_local = best.kind in _LOCALS and best.path.startswith(LOCAL)
        unnamed = free == TRACEBACK or best.kind is HolderKind.UNSEEN
        name = None if unnamed else best.root
        found[held.addr] = _HolderAtEnd(name, free, root_of(best.path) if is_local else None)
    return found
