"""Describe reserved bytes in private pools at the end, by their users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.events import BlockState
from nbmem.core.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.core.session.session import DeviceTrace, Session

LEAST = MIB
"""Smaller amounts are not mentioned."""
_NOBODY = "nobody any more (empty_cache() gives back what is free)"


def private_pools(session: Session, trace: DeviceTrace) -> Iterator[str]:
    """Yield a note if graphs or MemPools hold memory of a card at the end."""
    segments, blocks = trace.end.segments, trace.end.blocks
    size: dict[int, int] = {}
    for pool, one in zip(segments.pool.tolist(), segments.size.tolist(), strict=True):
        if pool:
            size[pool] = size.get(pool, 0) + one
    if sum(size.values()) < LEAST:
        return
    home = segments.pool[segments.addr.searchsorted(blocks.addr, "right") - 1]
    used = blocks.size[(home != 0) & (blocks.state != BlockState.INACTIVE)].sum()
    users = {one["pool"]: one["users"] for one in session.facts.get("pools") or ()}
    by_user: dict[str, int] = {}
    for pool, held in size.items():
        user = users.get(str(pool), _NOBODY)
        by_user[user] = by_user.get(user, 0) + held
    listed = ", ".join(
        f"{format_bytes(held)} of {user}"
        for user, held in sorted(by_user.items(), key=lambda one: -one[1])
    )
    yield (
        f"{format_bytes(sum(size.values()))} of the reserved bytes at the end are in private "
        f"pools, {format_bytes(int(used))} of them in use: {listed}. What is free in one serves no "
        "other."
    )
