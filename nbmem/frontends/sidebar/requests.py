"""What the sidebar may ask of the kernel, and the answers: a fixed list, with checked arguments.

A request comes on a comm of the page's own, with target RPC_TARGET, in the form of messages.py; it
is answered on that comm by State, Done or Refused with the request's id. nbmem never runs code that
came in a message: each request names an action of this list.
"""

from __future__ import annotations

from dataclasses import dataclass

from nbmem.frontends.sidebar.messages import CardInfo, Cell, CellEnded, LastReport, Process, Sample
from nbmem.frontends.sidebar.rank_messages import RanksNow

RPC_TARGET = "nbmem.rpc"
"""Of the comms that pages open."""
MOST_CELLS = 200
MOST_TEXT = 200
"""Characters of any text in a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetState:
    """Answered by State, also while a cell runs (where the kernel has subshells)."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseCard:
    """Put a virtual card in: a CardChoice's key; `off` leaves it. Not while a cell runs."""

    id: str
    card: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """Carry out the command of a finding of the last report, and measure it. Not beside a cell.

    Attributes:
        id: The request's.
        name: The command's name (`free`).
        arguments: Its words. Name and words must be those of a finding, or `free cache`.
    """

    id: str
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MuteRule:
    """Show no more (or again) what a rule finds."""

    id: str
    rule: str
    muted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRate:
    """Choose the samples a second, from LEAST_HZ to MOST_HZ."""

    id: str
    hz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNext:
    """Trace the next cell as if `%%memtrace` stood above it, or not after all."""

    id: str
    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectQuestion:
    """Somebody types `%%nbmem`: start the process that answers, which takes seconds to be ready."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardChoice:
    """A virtual card that can stand in: what ChooseCard takes.

    Attributes:
        key: Its short name (`H100 80GB`).
        name: Its full name.
        total: Bytes.
    """

    key: str
    name: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a page needs that has just come. The answer to GetState, and to what changes it.

    Attributes:
        id: The request's.
        t_ms: When.
        package: nbmem's version in the kernel.
        torch: torch's version; None if the notebook has not imported it.
        cards: The cards here; empty without a GPU.
        choices: The virtual cards, where one may be put in now; empty where not.
        rate_hz: Samples a second at most.
        tracing_next: Whether the next cell will be traced because the page asked for it.
        cell: The cell that runs.
        samples: Those of the last minute, oldest first.
        cells: The last MOST_CELLS cells, oldest first.
        report: Of the last trace.
        processes: Other processes on the cards.
        ranks: What a cell's ranks wrote last; None if none has started any.
        muted: Rules whose advice is not shown.
        notes: Faults of nbmem's own, one sentence each.
    """

    id: str
    t_ms: float
    package: str
    torch: str | None
    cards: tuple[CardInfo, ...]
    choices: tuple[CardChoice, ...]
    rate_hz: float
    tracing_next: bool
    cell: Cell | None
    samples: tuple[Sample, ...]
    cells: tuple[CellEnded, ...]
    report: LastReport | None
    processes: tuple[Process, ...]
    ranks: RanksNow | None
    muted: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A request was carried out; `sentence` says what it did."""

    id: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request was not carried out; `sentence` says why. `id` is empty where it was not read."""

    id: str
    sentence: str


Order = ChooseCard | RunCommand | MuteRule | SetRate | TraceNext | ExpectQuestion
Request = GetState | Order
Reply = State | Done | Refused
