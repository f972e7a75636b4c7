"""Compare ranks: spread, imbalance, first failure, cards and machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median_low
from typing import TYPE_CHECKING

from nbmem.core.session.categories import ACTIVE, PROCESS, Category
from nbmem.report.analysis.world.world_report import (
    FirstOut,
    HostMemory,
    Imbalance,
    SharedCard,
    Spread,
)

if TYPE_CHECKING:
    from nbmem.report.analysis.world.world_report import RankAtFailure, RankRow

MIN_SHARE, MIN_OF_CARD = 0.1, 0.01
"""A rank is out of balance if it exceeds the median by these parts of the median and of the card.
Smaller differences (a batch's last rows) do not justify a change."""
_STAGES = ("pp", "pipe", "stage")
"""Prefix of mesh dimensions whose ranks hold different layers."""
_CAUSES = (
    Category.INPUTS, Category.WEIGHTS, Category.OPTIMIZER_STATE, Category.COMMUNICATION,
    Category.USER_TENSORS, Category.ACTIVATIONS,
)  # fmt: skip
"""Causes in order of precedence: more inputs make more activations, and those more gradients."""
_CAUSE = 0.5
"""Part of the largest difference that a cause must have."""


def spreads(rows: Sequence[RankRow]) -> tuple[Spread, ...]:
    """Compute the spread of each category, each rank at its own peak.

    Only ranks that wrote a session count.
    """
    whole = [row for row in rows if row.held]
    return tuple(_spread(whole, c) for c in PROCESS if any(row.held[c] for row in whole))


def _spread(rows: Sequence[RankRow], category: Category) -> Spread:
    held = [(row.held[category], row.rank.number) for row in rows]
    low = min(held)
    high = max(held, key=lambda one: (one[0], -one[1]))
    return Spread(
        category=category,
        low=low[0],
        low_rank=low[1],
        high=high[0],
        high_rank=high[1],
        mean=sum(size for size, _ in held) // len(held),
    )


def imbalances(rows: Sequence[RankRow]) -> tuple[Imbalance, ...]:
    """Find ranks that peak above those that do the same work.

    Stages of a pipeline do not do the same work, so they are compared separately.
    """
    alike: dict[tuple[int, ...], list[RankRow]] = {}
    for row in rows:
        if row.held and not row.rank.stands_for:
            alike.setdefault(_stage(row), []).append(row)
    found = [one for group in alike.values() for row in group if (one := _imbalance(row, group))]
    return tuple(sorted(found, key=lambda one: -one.more))


def _stage(row: RankRow) -> tuple[int, ...]:
    mesh = row.rank.mesh.items()
    return tuple(at.index for name, at in mesh if name.lower().startswith(_STAGES))


def _imbalance(row: RankRow, group: Sequence[RankRow]) -> Imbalance | None:
    others = [one for one in group if one is not row]
    if not others or row.allocated is None or row.device is None:
        return None
    usual = median_low([one.allocated or 0 for one in others])
    more = row.allocated - usual
    if more < MIN_SHARE * usual or more < MIN_OF_CARD * row.device.total_bytes:
        return None
    by_category = [(c, row.held[c] - median_low([one.held[c] for one in others])) for c in ACTIVE]
    above = sorted((one for one in by_category if one[1] > 0), key=lambda one: -one[1])
    large = [c for c, size in above if size >= _CAUSE * above[0][1]]
    cause = next((c for c in _CAUSES if c in large), large[0] if large else None)
    named = None if cause is None else row.largest.get(cause)
    return Imbalance(
        rank=row.rank.number,
        more=more,
        median=usual,
        by_category=tuple(above),
        cause=cause,
        named=None if named is None else named[0],
    )


def first_out(
    rows: Sequence[RankRow], held: Callable[[RankRow, int], RankAtFailure]
) -> FirstOut | None:
    """Find the rank that ran out of memory first, and the others then.

    Args:
        rows: The ranks.
        held: Returns what a rank held at a moment.
    """
    refused = [(row.refusal, row) for row in rows if row.refusal is not None]
    if not refused:
        return None
    refusal, first = min(refused, key=lambda one: one[0].t_ns)
    others = tuple(held(row, refusal.t_ns) for row in rows if row is not first)
    return FirstOut(rank=first.rank.number, refusal=refusal, others=others)


def hosts(rows: Sequence[RankRow]) -> tuple[HostMemory, ...]:
    """Sum the host memory that ranks took, by machine.

    Virtual ranks are left out: their memory is that of an estimate.
    """
    on: dict[str, list[RankRow]] = {}
    for row in rows:
        estimated = row.rank.stands_for or (row.device is not None and row.device.virtual)
        if row.own_peak is not None and row.rank.host_bytes is not None and not estimated:
            on.setdefault(row.rank.host, []).append(row)
    return tuple(
        HostMemory(
            host=host,
            total=max(row.rank.host_bytes or 0 for row in there),
            ranks=tuple(row.rank.number for row in there),
            together=sum(row.own_peak or 0 for row in there),
        )
        for host, there in on.items()
    )


def shared_cards(rows: Sequence[RankRow]) -> tuple[SharedCard, ...]:
    """Find the cards that more than one rank used."""
    users: dict[tuple[str, str], list[RankRow]] = {}
    for row in rows:
        if row.rank.card is not None:
            users.setdefault((row.rank.host, row.rank.card), []).append(row)
    return tuple(
        SharedCard(
            host=host,
            card=card,
            total=next((row.device.total_bytes for row in on if row.device), None),
            ranks=tuple(row.rank.number for row in on),
            together=sum(row.process or row.reserved or 0 for row in on),
        )
        for (host, card), on in users.items()
        if len(on) > 1
    )
