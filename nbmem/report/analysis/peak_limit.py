"""Check a memory limit, and describe what went above it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from nbmem.core.errors import UsageError
from nbmem.core.session.categories import LIVE, PROCESS
from nbmem.core.units import format_bytes
from nbmem.report.analysis.lifetimes import lines_at, phase_at
from nbmem.report.analysis.totals_by_name import Account, bytes_by_account
from nbmem.report.ledger.card_ledger import CardLedger

if TYPE_CHECKING:
    from nbmem.core.session.session import Session
    from nbmem.core.session.spans import Span

Figure = Literal["allocated", "reserved", "active", "requested", "process"]
FIGURES: tuple[Figure, ...] = get_args(Figure)
LARGEST = 3


def over_limit(  # noqa: PLR0913 - each is an option of assert_peak's
    session: Session,
    limit: int,
    *,
    what: str,
    which: Figure = "allocated",
    device: int | None = None,
    within: Span | None = None,
) -> str | None:
    """Describe how a figure went above a limit on any card, or return None.

    Args:
        session: What was recorded.
        limit: Bytes.
        what: Name of what peaked: `In [3]`, `test_forward`.
        which: The figure.
        device: CUDA ordinal of the one card to check; None for all.
        within: The block to check; None for everything.

    Raises:
        UsageError: The figure is not known.
    """
    for index, trace in enumerate(session.devices):
        if device is None or trace.info.index == device:
            card_ledger = CardLedger(session, index)
            first, last = (0, None) if within is None else (within.first[index], within.last[index])
            position = _highest(
                card_ledger, which, first, card_ledger.events if last is None else last
            )
            if which == "process":
                peak = _process(card_ledger, first, last)
            else:
                peak = int(getattr(card_ledger, which)[position])
            if peak > limit:
                sentences = _sentences(card_ledger, position, what, which, peak, limit)
                return sentences + _before(card_ledger, which, first)
    return None


def _highest(card_ledger: CardLedger, which: Figure, first: int, last: int) -> int:
    """Return the position of the peak.

    Of several positions, the one with the most allocated bytes.
    """
    # Outside the reserved bytes this process's memory changes little, so reserved gives the peak.
    curve = getattr(card_ledger, "reserved" if which == "process" else which)
    highest = first + np.flatnonzero(curve[first : last + 1] == curve[first : last + 1].max())
    # Of several such moments choose the one with the most live bytes.
    return int(highest[np.argmax(card_ledger.allocated[highest])])


def _process(card_ledger: CardLedger, first: int, last: int | None) -> int:
    process = card_ledger.peak_process(first, last)
    if process is None:
        raise UsageError(
            "The driver does not say what this process holds (common in containers), so its peak "
            'cannot be held to a limit. Assert which="reserved".'
        )
    return process


def _sentences(  # noqa: PLR0913, PLR0917 - the contents of the sentences
    card_ledger: CardLedger, position: int, what: str, which: Figure, peak: int, limit: int
) -> str:
    ledger = card_ledger.ledger(position)
    shown = LIVE if which in ("allocated", "active", "requested") else PROCESS
    held = sorted(((ledger[c], c) for c in shown if ledger[c]), reverse=True)
    accounts = sorted(bytes_by_account(card_ledger, position).items(), key=lambda item: -item[1])
    categories = ", ".join(f"{format_bytes(size)} {c.label}" for size, c in held[: 2 * LARGEST])
    largest = "; ".join(f"{format_bytes(size)} {_name(one)}" for one, size in accounts[:LARGEST])
    return (
        f"{what} peaked at {format_bytes(peak)} {which}{_where(card_ledger, position)}, "
        f"{format_bytes(peak - limit)} above the limit of {format_bytes(limit)}.\n"
        f"Held at that moment: {categories}." + (f"\nLargest: {largest}." if largest else "")
    )


def _before(card_ledger: CardLedger, which: Figure, first: int) -> str:
    """Describe what was held before the block began, or return an empty text.

    Without these bytes the block might be within its limit.
    """
    before = 0 if which == "process" else int(getattr(card_ledger, which)[first])
    return f"\nBefore it began: {format_bytes(before)} {which}." if before else ""


def _where(card_ledger: CardLedger, position: int) -> str:
    phase, line = (
        phase_at(card_ledger, position),
        lines_at(card_ledger, np.array([position], np.int64))[0],
    )
    parts = [f"in {phase}" if phase else None, f"at {line}" if line else None]
    known = ", ".join(part for part in parts if part)
    return f" ({known})" if known else ""


def _name(account: Account) -> str:
    born = f" born in {account.born_in}" if account.born_in and not account.holder else ""
    name = account.holder or account.line
    return f"{account.category.label}{born}" + (f" ({name})" if name else "")
