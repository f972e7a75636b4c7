"""Encode and decode the rank of a session as JSON.

Every message is the middle of a sentence: the reader adds the file's name as a prefix.
"""

from __future__ import annotations

from typing import Any

from nbmem.core.errors import FileFormatError
from nbmem.core.files.json_fields import Fields
from nbmem.core.session.ranks import Coordinate, Ending, Rank
from nbmem.core.session.tensor_names import printable_text

MAX_RANKS = 1 << 20
"""Ranks of a world; the largest clusters have a fifth of it."""
_MAX_DIMENSIONS = 16
_ENDINGS: tuple[Ending, ...] = ("finished", "failed")


def rank_of(raw: Any) -> Rank:
    """Decode a rank."""
    rank = Fields(raw, "its rank")
    world = rank.number("world", MAX_RANKS, least=1)
    dimensions = rank.object("mesh")
    if len(dimensions) > _MAX_DIMENSIONS:
        raise FileFormatError(f"the mesh of its rank has {len(dimensions)} dimensions")
    ended = next((one for one in _ENDINGS if one == raw.get("ended")), None)
    if ended != raw.get("ended"):
        raise FileFormatError("its rank ended in a way that is not known here")
    return Rank(
        number=rank.number("number", world - 1),
        world=world,
        local=rank.maybe(lambda name: rank.number(name, MAX_RANKS), "local"),
        host=rank.text("host"),
        pid=rank.number("pid"),
        run=rank.maybe(rank.text, "run"),
        card=rank.maybe(rank.text, "card"),
        mesh={printable_text(name): _coordinate(at) for name, at in dimensions.items()},
        stands_for=rank.numbers("stands_for", world - 1),
        host_bytes=rank.maybe(rank.count, "host_bytes"),
        own_peak=rank.maybe(rank.count, "own_peak"),
        started_ns=rank.time("started_ns"),
        ended_ns=rank.maybe(rank.time, "ended_ns"),
        ended=ended,
    )


def _coordinate(raw: Any) -> Coordinate:
    at = Fields(raw, "a dimension of its rank's mesh")
    size = at.number("size", MAX_RANKS, least=1)
    return Coordinate(at.number("index", size - 1), size)


def rank_json(rank: Rank) -> dict[str, Any]:
    """Encode a rank for `rank_of`."""
    return {
        "number": rank.number,
        "world": rank.world,
        "local": rank.local,
        "host": rank.host,
        "pid": rank.pid,
        "run": rank.run,
        "card": rank.card,
        "mesh": {name: {"index": at.index, "size": at.size} for name, at in rank.mesh.items()},
        "stands_for": list(rank.stands_for),
        "host_bytes": rank.host_bytes,
        "own_peak": rank.own_peak,
        "started_ns": rank.started_ns,
        "ended_ns": rank.ended_ns,
        "ended": rank.ended,
    }
