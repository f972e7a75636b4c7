"""Build one report from a folder of rank files of one run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.core.files.rank_folder import RankFile, rank_file, rank_files
from nbmem.core.session.ranks import as_one_world, numbers_text
from nbmem.report.analysis.world.rank_comparison import (
    first_out,
    hosts,
    imbalances,
    shared_cards,
    spreads,
)
from nbmem.report.analysis.world.rank_rows import held_at, row_of
from nbmem.report.analysis.world.world_report import RankAtFailure, RankRow, WorldReport

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.files.size_limits import Limits


def read_world(path: str | Path, limits: Limits | None = None) -> WorldReport:
    """Read what the ranks of a run wrote, one file at a time.

    Args:
        path: The folder.
        limits: Limits on the size of each file.

    Raises:
        UsageError: There is no such folder, or no rank's file in it.
    """
    notes: list[str] = []
    rows: list[RankRow] = []
    for file in rank_files(path, limits):
        if isinstance(file, RankFile):
            rows.append(row_of(file))
        else:
            notes.append(file)
    if not rows:
        why = f" {notes[0]}" if notes else ""
        raise UsageError(
            f"There is no rank's file in {path}.{why} Let each rank write one: "
            f"torchrun --nproc-per-node 4 -m nbmem run train.py --save {path}"
        )
    chosen = _one_each(_numbered(_latest_run(rows, notes), notes), notes)
    size = _size(chosen, notes)
    there = {n for row in chosen for n in (row.rank.number, *row.rank.stands_for)}
    notes += _versions(chosen)
    out = first_out(chosen, lambda row, t_ns: _held(row, t_ns, limits))
    with_card = [row for row in chosen if row.allocated is not None]
    return WorldReport(
        title=chosen[0].title,
        size=size,
        rows=tuple(chosen),
        missing=tuple(n for n in range(size) if n not in there),
        highest=max(with_card, key=lambda row: row.allocated or 0, default=None),
        spreads=spreads(chosen),
        imbalances=imbalances(chosen),
        first_out=out,
        shared=shared_cards(chosen),
        hosts=hosts(chosen),
        notes=tuple(notes),
    )


def _latest_run(rows: Sequence[RankRow], notes: list[str]) -> list[RankRow]:
    """Return the rows of the run that began last.

    A note names the files of other runs.
    """
    last = max(rows, key=lambda row: row.rank.started_ns)
    run = [row for row in rows if row.rank.run == last.rank.run and not _before(row, last)]
    kept = {id(row) for row in run}
    others: dict[str | None, list[RankRow]] = {}
    for row in rows:
        if id(row) not in kept:
            others.setdefault(row.rank.run, []).append(row)
    for other in others.values():
        begun = time.strftime("%H:%M:%S", time.localtime(other[0].rank.started_ns / 1e9))
        notes.append(
            f"{_files(other)} of another run (it began at {begun}) and left out: only the latest "
            "run is shown. Keep each run in a folder of its own."
        )
    return run


def _before(row: RankRow, last: RankRow) -> bool:
    """Return whether a process had ended before another began.

    This separates runs without a name; for runs with a name the result is False.
    """
    ended = row.rank.ended_ns
    return row.rank.run is None and ended is not None and ended < last.rank.started_ns


def _numbered(rows: Sequence[RankRow], notes: list[str]) -> Sequence[RankRow]:
    """Return processes without a process group as ranks of one world.

    Each of them (an engine, say) was a world of its own.
    """
    ranks = as_one_world([row.rank for row in rows])
    if len(rows) > 1 and rows[0].rank.world < ranks[0].world:
        notes.append(
            f"These {len(rows)} processes know nothing of each other (no torch.distributed): they "
            "are numbered by host and process."
        )
    return [replace(row, rank=rank) for row, rank in zip(rows, ranks, strict=True)]


def _one_each(rows: Sequence[RankRow], notes: list[str]) -> list[RankRow]:
    """Keep the latest row of each rank.

    If two ranks have one number, a note names the earlier one.
    """
    by_number: dict[int, RankRow] = {}
    for row in sorted(rows, key=lambda row: row.rank.started_ns):
        before = by_number.get(row.rank.number)
        if before is not None:
            notes.append(
                f"Two processes say that they were rank {row.rank.number}: {row.path.name} is "
                f"shown, which began later, and {before.path.name} is left out."
            )
        by_number[row.rank.number] = row
    return [by_number[number] for number in sorted(by_number)]


def _size(rows: Sequence[RankRow], notes: list[str]) -> int:
    """Return the number of ranks that most of them report."""
    values = Counter(row.rank.world for row in rows)
    size = values.most_common(1)[0][0]
    if len(values) > 1:
        listed = ", ".join(f"{world} ({count})" for world, count in values.most_common())
        notes.append(
            f"The ranks do not agree on how many they are: {listed} say so. Taken: {size}."
        )
    return max(size, rows[-1].rank.number + 1)


def _versions(rows: Sequence[RankRow]) -> list[str]:
    values: dict[str, list[int]] = {}
    for row in rows:
        if row.device is not None:
            values.setdefault(row.device.torch, []).append(row.rank.number)
    if len(values) < 2:
        return []
    listed = ", ".join(f"{torch} ({numbers_text(numbers)})" for torch, numbers in values.items())
    return [f"The ranks ran different versions of torch: {listed}. Their figures may differ by it."]


def _held(row: RankRow, t_ns: int, limits: Limits | None) -> RankAtFailure:
    """Read a rank's file once more, for a moment from another rank's file."""
    file = rank_file(row.path, limits)
    if isinstance(file, str):  # it existed a moment ago
        return RankAtFailure(rank=row.rank.number, t_ns=None)
    return replace(held_at(file, t_ns), rank=row.rank.number)


def _files(rows: Sequence[RankRow]) -> str:
    if len(rows) == 1:
        return f"{rows[0].path.name} is"
    return f"{rows[0].path.name} and {len(rows) - 1} more are"
