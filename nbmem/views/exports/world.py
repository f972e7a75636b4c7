"""Export a world of ranks as JSON, in a documented, stable form.

`title`; `size`; `ranks`, a list by rank of {rank, host, pid, card, local_rank, mesh, stands_for,
run, file, state, started_ns, ended_ns, last_heard_ns, host_peak, device, peak, phase, step,
held_at_peak, place, error}; `missing`; `highest` (a rank); `spread`, a list of {category, least,
least_rank, most, most_rank, mean}; `imbalances`, a list of {rank, more, median, by_category};
`first_out`, null or {rank, t_ns, wanted, free, allocated, reserved, others}; `shared_cards`, a list
of {host, card, total_bytes, ranks, together}; `hosts`, a list of {host, total_bytes, ranks,
together} of the host's memory; `notes`.

All figures are bytes, times nanoseconds since the epoch. What a rank did not write is null. Keys
are added in later versions, never renamed or removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.core.session.categories import Category
    from nbmem.report.analysis.world.world_report import (
        FirstOut,
        RankAtFailure,
        RankRow,
        WorldReport,
    )


def world_json(world: WorldReport) -> dict[str, Any]:
    """Return the world in the JSON form that this module documents."""
    return {
        "title": world.title,
        "size": world.size,
        "ranks": [_rank(row) for row in world.rows],
        "missing": list(world.missing),
        "highest": None if world.highest is None else world.highest.rank.number,
        "spread": [
            {
                "category": one.category.key,
                "least": one.low,
                "least_rank": one.low_rank,
                "most": one.high,
                "most_rank": one.high_rank,
                "mean": one.mean,
            }
            for one in world.spreads
        ],
        "imbalances": [
            {
                "rank": one.rank,
                "more": one.more,
                "median": one.median,
                "by_category": _by_key(dict(one.by_category)),
                "cause": None if one.cause is None else one.cause.key,
                "named": one.named,
            }
            for one in world.imbalances
        ],
        "first_out": None if world.first_out is None else _first_out(world.first_out),
        "shared_cards": [
            {
                "host": one.host,
                "card": one.card,
                "total_bytes": one.total,
                "ranks": list(one.ranks),
                "together": one.together,
            }
            for one in world.shared
        ],
        "hosts": [
            {
                "host": one.host,
                "total_bytes": one.total,
                "ranks": list(one.ranks),
                "together": one.together,
            }
            for one in world.hosts
        ],
        "notes": list(world.notes),
    }


def _rank(row: RankRow) -> dict[str, Any]:
    rank, device = row.rank, row.device
    return {
        "rank": rank.number,
        "host": rank.host,
        "pid": rank.pid,
        "card": rank.card,
        "local_rank": rank.local,
        "mesh": {name: [at.index, at.size] for name, at in rank.mesh.items()},
        "stands_for": list(rank.stands_for),
        "run": rank.run,
        "file": row.path.name,
        "state": row.state,
        "started_ns": rank.started_ns,
        "ended_ns": rank.ended_ns,
        "last_heard_ns": row.last_ns,
        "host_peak": row.own_peak,
        "device": None
        if device is None
        else {
            "index": device.index,
            "name": device.name,
            "total_bytes": device.total_bytes,
            "virtual": device.virtual,
            "engine": device.engine or None,
            "torch": device.torch,
        },
        "peak": {"allocated": row.allocated, "reserved": row.reserved, "process": row.process},
        "phase": row.phase,
        "step": row.step,
        "held_at_peak": _by_key(row.held) or None,
        "place": None
        if not row.place
        else [{"file": f.file, "line": f.line, "function": f.function} for f in row.place],
        "error": row.error,
    }


def _first_out(out: FirstOut) -> dict[str, Any]:
    return {
        "rank": out.rank,
        "t_ns": out.refusal.t_ns,
        "wanted": out.refusal.wanted,
        "free": out.refusal.free,
        "allocated": out.refusal.allocated,
        "reserved": out.refusal.reserved,
        "others": [_then(then) for then in out.others],
    }


def _then(then: RankAtFailure) -> dict[str, Any]:
    return {
        "rank": then.rank,
        "t_ns": then.t_ns,
        "allocated": then.allocated,
        "reserved": then.reserved,
        "held": _by_key(then.held),
        "phase": then.phase,
        "step": then.step,
    }


def _by_key(held: Mapping[Category, int]) -> dict[str, int]:
    return {category.key: size for category, size in held.items()}
