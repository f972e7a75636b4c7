"""Explain an out-of-memory error in a cell that was not traced.

The sources are the observed failure, or the error's message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.holders import HeldStorage, HolderKind, roots_of
from nbmem.core.units import format_bytes
from nbmem.report.analysis.framework_advice import (
    framework_finding,
    other_frameworks_text,
    releasable_bytes,
)
from nbmem.report.analysis.source_lines import users_line, users_stack
from nbmem.report.model import Command, HeldGroup, Moment, OomReport

if TYPE_CHECKING:
    from nbmem.core.session.events import Stack
    from nbmem.core.session.frameworks import Share
    from nbmem.core.session.oom import OomMessage, Refusal

TRACE_IT = (
    "The cell was not traced. With %%memtrace on its first line, nbmem says what held the memory, "
    "and tries in its simulator what would have sufficed."
)
TRACE_IT_THERE = (
    "The cell was not traced. With %%memtrace on its first line, nbmem says what held the memory. "
    "It cannot try remedies in its simulator: torch takes its memory from another allocator here "
    "({})."
)
LARGEST = 5


def untraced(  # noqa: PLR0913 - each may be known or not
    refusal: Refusal | None,
    message: OomMessage | None,
    *,
    stack: Stack,
    layer: str | None,
    storages: Sequence[HeldStorage],
    caught: bool,
    shares: Sequence[Share] = (),
    allocator: str = "native",
) -> OomReport:
    """Explain an error as far as possible without the allocator's events.

    Args:
        refusal: The observed error; None without an observer.
        message: Rounded figures of the exception's text; None if only the program has the
            exception.
        stack: Stack of the exception, innermost first.
        layer: The module that was running.
        storages: The live storages, with their holders.
        caught: Whether the program continued.
        shares: Memory of the card that other frameworks of this process hold now.
        allocator: Name of the allocator that torch uses: its own is simulated in a traced cell.
    """
    line = users_line(refusal.stack) if refusal else None
    wanted = refusal.wanted if refusal else message.wanted if message else None
    free = refusal.free if refusal else message.free if message else None
    limit = refusal.limit if refusal else message.limit if message else None
    reserved = refusal.reserved if refusal else message.reserved if message else None
    allocated = refusal.allocated if refusal else message.allocated if message else None
    return OomReport(
        at=Moment(event=0, t_ns=0, line=line or users_line(stack)),
        calls=users_stack(refusal.stack if refusal and refusal.stack else stack),
        device=refusal.device if refusal else (message.device if message else None) or 0,
        asked=None,
        wanted=wanted,
        layer=(refusal.layer if refusal else None) or layer,
        operator=refusal.operator if refusal else None,
        thread=refusal.thread if refusal else None,
        caught=caught,
        free=free,
        limit=limit,
        allocated=allocated,
        reserved=reserved,
        others=message.others if message else None,
        reason=_reason(wanted, free, reserved, allocated, limit) + other_frameworks_text(shares),
        holders=() if caught else _holders(storages),
        remedies=tuple(
            framework_finding(share, "estimated")
            for share in shares
            if limit is None
            and free is not None
            and free < (wanted or 0) <= free + releasable_bytes(share)
        ),
        left=None if caught else left_by_traceback(storages),
        command=None if caught else Command(name="free", arguments=("traceback",)),
        notes=(TRACE_IT if allocator == "native" else TRACE_IT_THERE.format(allocator),),
    )


def left_by_traceback(storages: Sequence[HeldStorage]) -> int:
    """Return the bytes that only the traceback of a failed cell keeps."""
    held = roots_of(tuple(storages))
    return sum(root.alone for root in held if root.kind is HolderKind.TRACEBACK)


def _holders(storages: Sequence[HeldStorage]) -> tuple[HeldGroup, ...]:
    """Group what lives now by each storage's best holder, largest first."""
    sizes: dict[str, list[int]] = {}
    for held in storages:
        sizes.setdefault(held.holders[0].root, []).append(held.size)
    found = [
        HeldGroup(name=root, category=None, requested=sum(parts), count=len(parts))
        for root, parts in sizes.items()
    ]
    return tuple(sorted(found, key=lambda group: -group.requested)[:LARGEST])


def _reason(
    wanted: int | None,
    free: int | None,
    reserved: int | None,
    allocated: int | None,
    limit: int | None,
) -> str:
    """Explain the failure by the counters alone."""
    if wanted is None or free is None:
        return "torch's message has no figures."
    if limit is not None and free >= wanted:
        held = "" if reserved is None else f": {format_bytes(reserved)} were reserved already"
        return (
            f"A memory limit of {format_bytes(limit)} for this process{held}. The card itself had "
            f"{format_bytes(free)} free."
        )
    cached = 0 if reserved is None or allocated is None else reserved - allocated
    text = (
        f"{format_bytes(wanted)} were needed from the card, which had {format_bytes(free)} free: "
        f"{format_bytes(wanted - free)} too few."
    )
    if cached + free >= wanted:
        return (
            f"{text} torch had {format_bytes(cached)} cached, but in pieces between live tensors: "
            "fragmentation."
        )
    return f"{text} torch had {format_bytes(cached)} cached; with it there was too little still."
