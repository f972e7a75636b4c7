"""Export a labelled snapshot in torch.cuda.memory._dump_snapshot's form.

memory_viz colours an allocation by its `category` if one of them is `unknown`, and shows its
frames: the outermost frame contains cell, phase, category and name.
https://github.com/pytorch/pytorch/blob/v2.11.0/torch/utils/viz/MemoryViz.js (annotate_snapshot,
context_for_id). `user_metadata` has the same text for tools that show it. Pickle protocol 4.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.files.atomic_write import atomic_write
from nbmem.core.files.snapshot_segments import listed_segments
from nbmem.core.files.torch_snapshot import pool_id
from nbmem.core.session.categories import Category
from nbmem.core.session.events import Action
from nbmem.views.exports.event_places import cells_of, phases_of

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.report.ledger.card_ledger import CardLedger


def write(card_ledger: CardLedger, path: Path) -> None:
    """Write a card's recording as a torch snapshot.

    Other cards are empty in it.
    """
    ordinal, labels = card_ledger.trace.info.index, _EventLabels(card_ledger)
    snapshot = {
        "segments": list(_segments(card_ledger, labels)),
        "device_traces": [*([] for _ in range(ordinal)), list(_events(card_ledger, labels))],
        "allocator_settings": dict(card_ledger.trace.settings),
        "external_annotations": _annotations(card_ledger),
    }
    with atomic_write(path) as file:
        pickle.dump(snapshot, file, protocol=4)


class _EventLabels:
    """The label and the frames of each event.

    Equal frames are one list, as in torch's snapshot.
    """

    def __init__(self, card_ledger: CardLedger) -> None:
        places = zip(cells_of(card_ledger), phases_of(card_ledger), strict=True)
        self.places = [" | ".join(filter(None, place)) for place in places]
        self._card_ledger = card_ledger
        self._frames: dict[tuple[int, str, str], list[dict[str, Any]]] = {}

    def category(self, row: int) -> str:
        """Return the label of an allocation's category."""
        return Category(int(self._card_ledger.category[row])).label

    def what(self, row: int) -> str:
        """Return the category and the name of an allocation."""
        name = self._card_ledger.name(row)
        return self.category(row) if name is None else f"{self.category(row)}: {name}"

    def frames(self, row: int) -> list[dict[str, Any]]:
        """Return an allocation's stack, with its label as the outermost frame."""
        a = self._card_ledger.allocations
        born, stack = int(a.allocated_at[row]), int(a.stack[row])
        place = self.places[born] if born >= 0 else "before the recording"
        key = stack, place, self.what(row)
        if key not in self._frames:
            known = {"name": key[2], "filename": place, "line": 0}
            self._frames[key] = [*self.stack(stack), known]
        return self._frames[key]

    def stack(self, index: int) -> list[dict[str, Any]]:
        """Return a stack in torch's form; empty where none was recorded."""
        frames = self._card_ledger.session.stacks[index] if index >= 0 else ()
        return [{"name": f.function, "filename": f.file, "line": f.line} for f in frames]


def _events(card_ledger: CardLedger, labels: _EventLabels) -> Iterator[dict[str, Any]]:
    events, a = card_ledger.trace.events, card_ledger.allocations
    row_of = {int(a.allocated_at[row]): row for row in np.flatnonzero(a.allocated_at >= 0).tolist()}
    unknown = Category.UNKNOWN.label
    for at in range(len(events)):
        action, row = Action(int(events.action[at])), row_of.get(at)
        where = "device_free" if action is Action.OOM else "addr"
        place = labels.places[at]
        yield {
            "action": action.name.lower(),
            where: int(events.addr[at]),
            "size": int(events.size[at]),
            "stream": int(events.stream[at]),
            "time_us": int(events.t_ns[at]) // 1000,
            "compile_context": "N/A",
            "user_metadata": place if row is None else f"{place} | {labels.what(row)}",
            "category": unknown if row is None else labels.category(row),
            "frames": labels.stack(int(events.stack[at])) if row is None else labels.frames(row),
        }


def _annotations(card_ledger: CardLedger) -> list[dict[str, Any]]:
    ordinal = card_ledger.trace.info.index
    found = [
        {"stage": stage, "name": span.name, "device": ordinal, "time_us": t_ns // 1000}
        for span in card_ledger.session.spans
        for stage, t_ns in (("START", span.t0_ns), ("END", span.t1_ns))
    ]
    return sorted(found, key=lambda note: int(str(note["time_us"])))


def _segments(card_ledger: CardLedger, labels: _EventLabels) -> Iterator[dict[str, Any]]:
    layout, live = card_ledger.trace.end, card_ledger.live(card_ledger.events)
    row_at = dict(zip(card_ledger.allocations.addr[live].tolist(), live.tolist(), strict=True))

    def frames(block: int) -> list[dict[str, Any]]:
        row = row_at.get(int(layout.blocks.addr[block]))
        return labels.stack(int(layout.blocks.stack[block])) if row is None else labels.frames(row)

    return listed_segments(layout, card_ledger.trace.info.index, frames, pool_id)
