"""Messages that the kernel pushes to the sidebar.

They are declared once, and tools/messages.py writes their TypeScript. On the wire a message is one
JSON object: `nbmem` (VERSION), `kind` (the class's name: `cell_begun`) and its fields. Times are
the kernel's clock. None is null: the value is unknown. Ordered fields are lists of tuples, never
objects, since notebooks are saved with their objects' keys sorted.

Pushes are sent on iopub as `comm_msg` of a comm with target TARGET that was never opened. A page
accepts those whose data has `nbmem` equal to VERSION, without a handshake. They are sent only while
a cell runs.

A field that is added later does not change VERSION: readers ignore fields that they do not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.session.cell_delta import CellDelta
from nbmem.frontends.sidebar.rank_messages import RanksNow

if TYPE_CHECKING:  # message_codec.py finds them: %load_ext waits for no report
    from nbmem.report.model import Finding, Peak

VERSION = 1
TARGET = "nbmem"
"""Target name of the comm that pushes."""
LEAST_HZ, USUAL_HZ, MOST_HZ = 2, 4, 10
"""Samples a second while a cell runs; fewer if nothing changes."""
MOST_PHASES = 400
"""Phases in a report."""

Entry = tuple[str, str, int]
"""A category's key, label and bytes; or those of a part of the host's memory. `tensors` is a part
of the tensors, `files` and `shared` of the process, `cache` of what is available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of the notebook.

    Attributes:
        number: The 3 of `In [3]`; None for a cell that IPython does not count.
        cell_id: JupyterLab's id of the cell; None where the front end does not send it.
        label: Its first line of code, or the name that the user gave.
        traced: Whether it is recorded fully (`%%memtrace`).
        begun_ms: When it began, milliseconds since the epoch.
    """

    number: int | None
    cell_id: str | None
    label: str
    traced: bool
    begun_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSample:
    """A sample of one card, in bytes.

    Attributes:
        index: CUDA ordinal.
        name: The driver's name for it; None if the driver does not report one.
        virtual: Whether it is one of nbmem's virtual cards.
        total: The whole card; the host's memory if the card shares that.
        allocated: Bytes in live blocks, rounded up as the allocator does.
        reserved: Bytes held from the driver.
        process: Bytes that the driver counts for this process.
        free: Unused bytes.
        driver: Bytes that the driver reserves for itself; 0 if it does not report them.
        peak: Highest `allocated` since the cell began.
        peak_exact: Whether it was counted; else it is the highest sample, and more is possible.
        by_category: `allocated` by category, in the order to stack them. They add up to it exactly;
            the last one is the rest. Empty if nothing is known: in a cell without a trace, and
            before a loop's first forward has ended.
        frameworks: Bytes that other frameworks of this process report, by category: a part of what
            `process` has beyond `reserved`. The labels are their names. Empty if there are none.
        shared: Whether the card uses the host's memory and has none of its own.
    """

    index: int
    name: str | None
    virtual: bool
    total: int | None
    allocated: int
    reserved: int
    process: int | None
    free: int | None
    driver: int
    peak: int
    peak_exact: bool
    by_category: tuple[Entry, ...]
    frameworks: tuple[Entry, ...]
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """A sample of the host's memory, in bytes, where torch has no card.

    Attributes:
        total: The machine's, or the limit of its container.
        process: Resident bytes of this process: what `top` shows.
        peak: Highest `process` since the cell began.
        peak_exact: As for CardSample: whether the kernel counted it.
        free: Available bytes: page cache that the kernel would release is free.
        by_category: `process` by the categories of a trace, in the order to stack them. They add up
            to it exactly; the last one is the rest. Empty if nothing is known.
        parts: Its parts, across the categories, by key of an Entry. Empty if the kernel does not
            report them.
    """

    total: int
    process: int
    peak: int
    peak_exact: bool
    free: int | None
    by_category: tuple[Entry, ...]
    parts: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Samples of the cards while a cell runs, or of the host.

    The host is sampled if there is no card. Pushed when a figure has changed.

    Attributes:
        t_ms: Time of the reading, milliseconds since the epoch.
        cell: The cell that runs.
        phase: Current phase of a traced training loop (`forward`); None elsewhere.
        step: Its step, from 0.
        cards: Each card that torch uses.
        host: The host's memory; None if torch could use a card.
    """

    t_ms: float
    cell: Cell
    phase: str | None
    step: int | None
    cards: tuple[CardSample, ...]
    host: HostSample | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBegun:
    """A cell has begun, and runs long enough to be worth a message."""

    t_ms: float
    cell: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnded:
    """A cell has ended. Pushed if samples of it were, or would be.

    Attributes:
        t_ms: Time of its end.
        cell: The cell that ended.
        delta: Memory that it took and left, with its peak; None if it has no line in the history.
    """

    t_ms: float
    cell: Cell
    delta: CellDelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardInfo:
    """A card that torch could use here.

    Attributes:
        index: CUDA ordinal; NVML's index if torch is not started.
        name: The driver's name.
        total: Bytes; the host's memory if the card shares it.
        virtual: Whether it is one of nbmem's virtual cards.
        shared: Whether it uses the host's memory and has none of its own.
    """

    index: int
    name: str
    total: int | None
    virtual: bool
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase of the last trace.

    Attributes:
        name: `forward`, or the user's own name for a block.
        step: From 0; None outside of a step.
        depth: 1 for a phase inside another.
        duration_ms: Its duration.
        before: Allocated bytes at its start.
        peak: Highest allocated bytes inside.
        after: Allocated bytes at its end.
    """

    name: str
    step: int | None
    depth: int
    duration_ms: float
    before: int
    peak: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReport:
    """The report of the last trace. Pushed at the traced cell's end.

    Attributes:
        t_ms: Time at which it was finished.
        cell: The traced cell; None for an opened file.
        title: Its label.
        verdict: Its first sentence: one number and a judgement.
        device: The card.
        duration_ms: Duration of the recording.
        peak: The highest figures, and their moments.
        at_peak: The whole card at the peak, by category; adds up to the card.
        at_end: The whole card at the end, by category.
        parts_at_peak: Parts of the host's memory at the peak, as in HostSample; empty for a card.
        phases: In order of their start, the first MOST_PHASES.
        phases_left_out: How many more there were.
        findings: Advice, the largest saving first.
        tries: Rules whose first finding `%nbmem try` can apply to the cell.
        notes: One sentence each.
        error: The exception that ended it.
    """

    t_ms: float
    cell: Cell | None
    title: str
    verdict: str
    device: CardInfo
    duration_ms: float
    peak: Peak
    at_peak: tuple[Entry, ...]
    at_end: tuple[Entry, ...]
    parts_at_peak: tuple[Entry, ...]
    phases: tuple[Phase, ...]
    phases_left_out: int
    findings: tuple[Finding, ...]
    tries: tuple[str, ...]
    notes: tuple[str, ...]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Another process on a card.

    Attributes:
        card: CUDA ordinal.
        pid: Its number, as the driver sees it.
        name: The program's name; None if that is hidden.
        notebook: The notebook whose kernel it is (`train.ipynb`); None for other programs.
        used: Its bytes.
    """

    card: int
    pid: int
    name: str | None
    notebook: str | None
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The other processes on the cards, by bytes. Pushed on change."""

    t_ms: float
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence to show once (`the live readings stopped: ...`)."""

    t_ms: float
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """nbmem is loaded in this kernel: a page may ask for the State.

    Attributes:
        t_ms: When.
        package: nbmem's version.
    """

    t_ms: float
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """nbmem is being unloaded from this kernel; the last message."""

    t_ms: float


Push = Sample | CellBegun | CellEnded | LastReport | Processes | RanksNow | Note | Loaded | Unloaded
