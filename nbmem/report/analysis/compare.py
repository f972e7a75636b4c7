"""Compare two runs, cells or steps by category, holder and line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nbmem.core.errors import UsageError
from nbmem.core.session.cards import fullest
from nbmem.core.session.categories import BESIDE, RESERVED
from nbmem.core.session.tensor_names import root_of
from nbmem.report.analysis.aligned_courses import Course, course
from nbmem.report.analysis.totals_by_name import Account, bytes_by_account
from nbmem.report.ledger.card_ledger import CardLedger

if TYPE_CHECKING:
    from nbmem.core.session.session import Session

Kind = Literal["category", "holder", "line"]
NO_LINES = (
    "Lines are compared where stacks were taken on both sides (%%memtrace --stacks, "
    "nbmem run --stacks, a snapshot with context)."
)
OTHER_CARD = "The sides ran on different cards ({a} and {b}): blocks and workspaces may differ."


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A category, holder or line whose bytes differ between two sides.

    Each side is taken at its peak.

    Attributes:
        kind: What it is.
        name: A category, a holder's name or a line.
        a: Bytes on the first side.
        b: Bytes on the second.
    """

    kind: Kind
    name: str
    a: int
    b: int

    @property
    def change(self) -> int:
        """Bytes that the second side holds beyond the first."""
        return self.b - self.a


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: bytes at its peak, and what it left.

    Attributes:
        label: Its label.
        card: The card's name.
        allocated: Highest allocated bytes.
        reserved: Highest reserved bytes.
        left: Allocated bytes at its end.
        held: Bytes at the peak by kind and name.
        lines: Whether stacks were taken.
        course: Memory after each event.
    """

    label: str
    card: str
    allocated: int
    reserved: int
    left: int
    held: Mapping[tuple[Kind, str], int]
    lines: bool
    course: Course


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides and what changed between them.

    Attributes:
        a: The first side.
        b: The second.
        changes: What differs, the largest difference first.
        notes: One sentence each.
    """

    a: Side
    b: Side
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def compare(a: Side, b: Side) -> Comparison:
    """Compare two sides and list what differs, largest difference first."""
    both = a.lines and b.lines
    keys = [key for key in {**a.held, **b.held} if both or key[0] != "line"]
    changes = [
        Change(kind=kind, name=name, a=a.held.get((kind, name), 0), b=b.held.get((kind, name), 0))
        for kind, name in keys
    ]
    notes = [] if both else [NO_LINES]
    if a.card != b.card:
        notes.append(OTHER_CARD.format(a=a.card, b=b.card))
    return Comparison(
        a=a,
        b=b,
        changes=tuple(sorted((c for c in changes if c.change), key=lambda c: -abs(c.change))),
        notes=tuple(notes),
    )


def summarize_side(session: Session, *, label: str | None = None, step: int | None = None) -> Side:
    """Summarize a recording, or one of its steps, for a comparison.

    The card that held the most memory is read.

    Args:
        session: What was recorded.
        label: Its label; None for the session's name.
        step: The step to read; None for everything.

    Raises:
        UsageError: The session used no card, or has no such step.
    """
    if not session.devices:
        raise UsageError(f"{session.name!r} used no GPU memory, so there is nothing to compare.")
    index = fullest(session.devices)
    card_ledger = CardLedger(session, index)
    first, last = (0, card_ledger.events) if step is None else _bounds(card_ledger, index, step)
    top = card_ledger.peak(first, last)
    ledger = card_ledger.ledger(top)
    held: Counter[tuple[Kind, str]] = Counter()
    for category in (*RESERVED, *BESIDE):
        held["category", category.label] = ledger[category]
    for account, size in bytes_by_account(card_ledger, top).items():
        held["holder", root_of(account.holder) if account.holder else _unnamed(account)] += size
        if account.line is not None:
            held["line", account.line] += size
    return Side(
        label=label or session.name,
        card=card_ledger.trace.info.name,
        allocated=int(card_ledger.allocated[top]),
        reserved=int(card_ledger.reserved[first : last + 1].max()),
        left=int(card_ledger.allocated[last]),
        held=held,
        lines=bool(session.stacks),
        course=course(card_ledger, first, last),
    )


def _unnamed(account: Account) -> str:
    born = f", born in {account.born_in}" if account.born_in else ""
    return f"unnamed {account.category.label}{born}"


def _bounds(card_ledger: CardLedger, index: int, step: int) -> tuple[int, int]:
    spans = [s for s in card_ledger.session.spans if s.kind == "phase" and s.step is not None]
    of_step = [span for span in spans if span.step == step]
    if not of_step:
        known = sorted({span.step for span in spans if span.step is not None})
        there = f"It has the steps {known[0]} to {known[-1]}" if known else "It has none"
        raise UsageError(f"{card_ledger.session.name!r} has no step {step}. {there}.")
    return min(s.first[index] for s in of_step), max(s.last[index] for s in of_step)
