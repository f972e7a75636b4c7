"""Build the explanations of a recording's out-of-memory errors.

The error that ended the recording is explained in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.core.errors import NbmemError
from nbmem.core.runtime.fault_isolation import UNGUARDED, Faults
from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HolderKind, roots
from nbmem.core.units import format_bytes
from nbmem.report.analysis.framework_advice import other_frameworks_text
from nbmem.report.analysis.moments import moment_at
from nbmem.report.analysis.oom.failed_request import (
    FailedRequest,
    cases,
    free_in_private_pools,
    free_pieces,
    layout,
)
from nbmem.report.analysis.oom.live_groups import AllocationGroup, groups
from nbmem.report.analysis.oom.program_changes.smaller_weights import too_large_note
from nbmem.report.analysis.oom.program_changes.trained_weights import too_much_trained_note
from nbmem.report.analysis.oom.remedies import remedies
from nbmem.report.analysis.source_lines import users_line, users_stack
from nbmem.report.model import Command, Finding, Moment, OomReport

if TYPE_CHECKING:
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.ledger.card_ledger import CardLedger

LARGEST = 5
MAX_FAILED_REQUESTS = 20
"""Failed requests in a report; only the most important one is explained in full."""


def autopsies(
    card_ledger: CardLedger, t0_ns: int, faults: Faults = UNGUARDED
) -> tuple[OomReport, ...]:
    """Explain every out-of-memory error of a recording.

    The one that ended it (or the last) comes first.

    Args:
        card_ledger: The card's ledger.
        t0_ns: Start of the recording, nanoseconds since the epoch.
        faults: Collects faults and leaves out the failed parts; by default a fault is raised.
    """
    found = cases(card_ledger)
    if not found:
        return ()
    *others, chief = found
    brief = _brief(chief, t0_ns)
    return (
        faults.part("Who held the memory", lambda: _full(chief, brief, faults), brief),
        *faults.part(
            "The other errors",
            lambda: [_brief(case, t0_ns) for case in others[: MAX_FAILED_REQUESTS - 1]],
            [],
        ),
    )


def passed_over_note(card_ledger: CardLedger) -> str | None:
    """Return a note on requests that torch repeated with less, or None."""
    rows = sorted(card_ledger.refused.retried)
    if not rows:
        return None
    most = format_bytes(int(card_ledger.trace.events.size[rows].max()))
    count = "A request" if len(rows) == 1 else f"{len(rows):,} requests"
    return (
        f"{count} found no room (up to {most}), and the same lines went on with less: on a full "
        "card torch takes kernels of convolutions whose work areas are smaller, and which may be "
        "slower."
    )


def _brief(case: FailedRequest, t0_ns: int) -> OomReport:
    """Explain where, what and why a request failed, without remedies."""
    seen = case.refusal
    at = layout(case)
    pieces = free_pieces(case, at)
    return OomReport(
        at=_moment(case, t0_ns),
        device=case.card_ledger.trace.info.index,
        asked=case.size,
        wanted=case.wanted,
        layer=seen.layer if seen else None,
        operator=seen.operator if seen else None,
        thread=seen.thread if seen else None,
        caught=case.caught,
        free=case.free,
        limit=case.limit,
        allocated=int(case.card_ledger.allocated[case.index]),
        reserved=case.reserved,
        given_back=case.given_back,
        largest=int(pieces.max(initial=0)),
        pieces=int(pieces.sum()),
        pooled=free_in_private_pools(at),
        calls=users_stack(seen.stack) if seen else (),
        reason=_reason(case, int(pieces.sum()), int(pieces.max(initial=0)), len(pieces)),
    )


def _full(case: FailedRequest, brief: OomReport, faults: Faults) -> OomReport:
    held = faults.part("The largest holders", lambda: groups(case), [])
    found, notes = faults.part("The remedies", lambda: _tried(case, held, brief), ((), ()))
    ledger = faults.part("The card at that moment", lambda: _ledger(case), None)
    fatal = not case.caught
    return replace(
        brief,
        ledger=ledger,
        others=ledger[Category.OTHER_PROCESSES] if ledger and ledger.process_known else None,
        holders=tuple(group.held for group in held[:LARGEST]),
        remedies=found,
        left=faults.part("What the failure left", lambda: _left(case), None) if fatal else None,
        command=Command(name="free", arguments=("traceback",)) if fatal else None,
        notes=notes,
    )


def _tried(
    case: FailedRequest, held: Sequence[AllocationGroup], brief: OomReport
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the remedies that would have sufficed, or a note without any."""
    try:
        found = remedies(case, held, brief.at.phase)
    except NbmemError as err:
        return (), (f"Remedies could not be tried: {err}",)
    if found:
        return found, ()
    if too_large := too_large_note(case) or too_much_trained_note(case):
        return (), (too_large,)
    nothing = (
        "Nothing that was tried in the simulator would have sufficed: other allocator settings, "
        "freeing what has a name, a smaller batch, activations computed again, or two or three "
        "changes of a model together."
    )
    return (), (nothing,)


def _moment(case: FailedRequest, t0_ns: int) -> Moment:
    """Return the moment when the request failed.

    Its own event is the latest one.
    """
    found = moment_at(case.card_ledger, case.index + 1, t0_ns)
    line = users_line(case.refusal.stack) if case.refusal is not None else None
    return replace(found, event=case.index, line=line or found.line)


def _reason(case: FailedRequest, pieces: int, largest: int, count: int) -> str:
    """Explain why the allocator could not serve the request."""
    wanted, free = format_bytes(case.wanted), format_bytes(case.free)
    cached = (
        f"The free pieces of torch's cache that may serve it ({format_bytes(pieces)} in {count}, "
        f"the largest {format_bytes(largest)}) are too small"
        if count
        else "torch's cache has no free piece that may serve it"
    )
    if case.limited:
        allowed = "" if case.limit is None else f" of {format_bytes(case.limit)}"
        return (
            f"A memory limit{allowed} for this process: {format_bytes(case.reserved)} were "
            f"reserved, {wanted} more were needed, and the card itself had {free} free. {cached}."
        )
    room = case.capacity - case.reserved
    if pieces and pieces + room >= case.wanted:
        return (
            f"Fragmentation: {format_bytes(pieces + room)} were free for it, but in pieces. "
            f"{cached}, lie between live tensors and cannot be given back; the card had {free} "
            f"free and {wanted} were needed in one piece."
        )
    return (
        f"Too little memory: {wanted} were needed from the card, which had {free} free: "
        f"{format_bytes(case.missing)} too few. {cached}."
        f"{other_frameworks_text(case.card_ledger.ledger(case.index).owners)}"
    )


def _ledger(case: FailedRequest) -> Ledger | None:
    """Return the card's ledger at the failure; None without readings.

    The free bytes are from torch's own history.
    """
    card_ledger = case.card_ledger
    if not len(card_ledger.trace.samples):
        return None
    ledger = card_ledger.ledger(case.index)
    held = list(ledger.held)
    context = held[Category.CONTEXT] + held[Category.FREE] - case.free
    if context < 0:
        return ledger
    held[Category.CONTEXT], held[Category.FREE] = context, case.free
    return replace(ledger, held=tuple(held))


def _left(case: FailedRequest) -> int | None:
    """Return the bytes that only the failed cell's traceback keeps.

    None if holders were not searched.
    """
    found = roots(case.card_ledger.session, case.card_ledger.trace)
    if found is None:
        return None
    return sum(root.alone for root in found if root.kind is HolderKind.TRACEBACK)
