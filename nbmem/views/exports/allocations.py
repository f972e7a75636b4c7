"""Export every allocation of a card as CSV, in order of allocation.

`bytes` is the requested size, `block` the size of its block; `born_us` and `freed_us` are
microseconds since the recording began. Unknown values are empty: `born_us` of allocations older
than the recording, `freed_us` of live ones. A text that a spreadsheet would take for a formula is
prefixed with `'`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbmem.core.files.atomic_write import atomic_write
from nbmem.core.session.categories import Category
from nbmem.report.analysis.lifetimes import stack_line
from nbmem.report.analysis.report_builder import recorded_times
from nbmem.views.exports.event_places import cells_of

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.report.ledger.card_ledger import CardLedger

COLUMNS = (
    "allocation", "bytes", "block", "category", "name", "cell", "phase", "step", "born_us",
    "freed_us", "line", "address", "stream",
)  # fmt: skip


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write(card_ledger: CardLedger, path: Path) -> None:
    """Write every allocation as a line of CSV."""
    with (
        atomic_write(path) as file,
        io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="") as text,
    ):
        table = csv.writer(text)
        table.writerow(COLUMNS)
        table.writerows(_rows(card_ledger))


def _plain(text: str | None) -> str | None:
    """Quote a text that a spreadsheet would take for a formula."""
    return f"'{text}" if text and text.startswith(_FORMULA) else text


def _rows(card_ledger: CardLedger) -> Iterator[tuple[object, ...]]:
    a, times = card_ledger.allocations, card_ledger.trace.events.t_ns
    t0_ns, _ = recorded_times(card_ledger)
    cells = cells_of(card_ledger)

    def since_start(event: int) -> float | None:
        return (int(times[event]) - t0_ns) / 1000 if 0 <= event < card_ledger.events else None

    for row in range(len(a)):
        born, phase = int(a.allocated_at[row]), int(card_ledger.born_in[row])
        span = card_ledger.phases.spans[phase][1] if phase >= 0 else None
        yield (
            row,
            int(a.requested[row]),
            int(a.block[row]),
            Category(int(card_ledger.category[row])).key,
            _plain(card_ledger.name(row)),
            _plain(cells[born]) if born >= 0 else None,
            None if span is None else _plain(span.name),
            None if span is None else span.step,
            since_start(born),
            since_start(int(a.freed[row])),
            _plain(stack_line(card_ledger, int(a.stack[row]))),
            f"{int(a.addr[row]):#x}",
            int(a.stream[row]),
        )
