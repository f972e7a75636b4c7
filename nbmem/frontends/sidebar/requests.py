"""Requests of the sidebar to the kernel, and the answers.

The list is fixed, and arguments are checked. A request comes on a comm that the page opened with
target RPC_TARGET, in the form of messages.py. The reply on that comm is State, Done or Refused with
the request's id. nbmem never runs code from a message: each request names an action of this list.
"""

from __future__ import annotations

from dataclasses import dataclass

from nbmem.frontends.sidebar.messages import CardInfo, Cell, CellEnded, LastReport, Process, Sample
from nbmem.frontends.sidebar.rank_messages import RanksNow

RPC_TARGET = "nbmem.rpc"
"""Target name of the comms that pages open."""
MOST_CELLS = 200
MOST_TEXT = 200
"""Limit on the characters of any text in a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetState:
    """A request for the State; answered while a cell runs, too.

    This requires a kernel with subshells.
    """

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseCard:
    """A request to activate a virtual card.

    `card` is a CardChoice's key; `off` deactivates it. Refused while a cell runs.
    """

    id: str
    card: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """A request to run and measure a command of a finding.

    The finding is from the last report. Refused while a cell runs.

    Attributes:
        id: The request's.
        name: The command's name (`free`).
        arguments: Its arguments. Name and arguments must be those of a finding, or `free cache`.
    """

    id: str
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MuteRule:
    """A request to mute or unmute a rule's findings."""

    id: str
    rule: str
    muted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRate:
    """A request for a number of samples a second.

    From LEAST_HZ to MOST_HZ.
    """

    id: str
    hz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNext:
    """A request to trace the next cell, or to cancel that.

    The cell is traced as if `%%memtrace` stood above it.
    """

    id: str
    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectQuestion:
    """A request to start the process of estimates in advance.

    Sent while the user types `%%nbmem`: the process takes seconds to be ready.
    """

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardChoice:
    """A virtual card that ChooseCard accepts.

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
    """The full state for a page that has just connected.

    It is the reply to GetState.

    Attributes:
        id: The request's.
        t_ms: When.
        package: nbmem's version in the kernel.
        torch: torch's version; None if the notebook has not imported it.
        cards: The cards here; empty without a GPU.
        choices: The virtual cards, if one can be activated now; else empty.
        rate_hz: Maximum samples a second.
        tracing_next: Whether the next cell will be traced at the page's request.
        cell: The cell that runs.
        samples: Samples of the last minute, oldest first.
        cells: The last MOST_CELLS cells, oldest first.
        report: Report of the last trace.
        processes: Other processes on the cards.
        ranks: Latest data of a cell's ranks; None if none has started any.
        muted: Rules whose advice is not shown.
        notes: Faults of nbmem itself, one sentence each.
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
    """A request was refused; `sentence` gives the reason.

    `id` is empty if it could not be read.
    """

    id: str
    sentence: str


Order = ChooseCard | RunCommand | MuteRule | SetRate | TraceNext | ExpectQuestion
Request = GetState | Order
Reply = State | Done | Refused
