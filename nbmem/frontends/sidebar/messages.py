"""Messages that the kernel pushes to the sidebar.

They are declared once, and tools/messages.py writes their TypeScript. On the wire a message is one
JSON object: `nbmem` (VERSION), `kind` (the class's name: `cell_begun`) and its fields. Times are
the kernel's clock. None is null: the value cannot be known. Ordered fields are lists of tuples,
never objects, since notebooks are saved with their objects' keys sorted.

Pushes are sent on iopub as `comm_msg` of a comm with target TARGET that was never opened. A page
accepts those whose data has `nbmem` equal to VERSION, without a handshake. They are sent only while
a cell runs.

A field that is added later does not change VERSION: readers ignore fields that they do not know.
"""

from __future__ import annotations

from dataclasses import dataclass

from nbmem.core.session.cell_delta import CellDelta
from nbmem.frontends.sidebar.rank_messages import RanksNow
from nbmem.report.model import Finding, Peak

VERSION = 1
TARGET = "nbmem"
"""Of the comm that pushes."""
LEAST_HZ, USUAL_HZ, MOST_HZ = 2, 4, 10
"""Samples a second while a cell runs; fewer where nothing changes."""
MOST_PHASES = 400
"""Of a report."""

Entry = tuple[str, str, int]
"""A category's key, its label, its bytes; or a part's of the host's memory: `tensors` is one of the
tensors, `files` and `shared` are of the process, `cache` is of what is available."""


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
        name: The driver's name; None where it does not say.
        virtual: Whether it is nbmem's.
        total: The whole card; the host's memory where it shares that.
        allocated: Bytes in live blocks, rounded up as the allocator does.
        reserved: Bytes held from the driver.
        process: What the driver counts for this process.
        free: What nobody uses.
        driver: What the driver keeps for itself; 0 where it does not say.
        peak: Highest `allocated` since the cell began: torch's own counter where the cell has
            raised it, else the highest that was read.
        by_category: `allocated` by what is known of it, in the order to stack them. They add up to
            it exactly; the last one is the rest. Empty where nothing is known: in a cell without a
            trace, and before a loop's first forward has ended.
        frameworks: What other frameworks of this process hold and say, by category: a part of what
            `process` has beyond `reserved`. Their names are the labels. Empty for none.
        shared: Whether the card has the host's memory and none of its own.
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
    by_category: tuple[Entry, ...]
    frameworks: tuple[Entry, ...]
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """A sample of the host's memory, in bytes, where torch has no card.

    Attributes:
        total: The machine's, or the limit of its container.
        process: Resident bytes of this process: what `top` shows.
        peak: Highest `process` that was read since the cell began.
        free: What could be had: page cache that the kernel would give back is free.
        by_category: `process` by what a trace knows of it, in the order to stack them. They add up
            to it exactly; the last one is the rest. Empty where nothing is known.
        parts: What it is of, across the categories, by key of an Entry. Empty where the kernel does
            not say.
    """

    total: int
    process: int
    peak: int
    free: int | None
    by_category: tuple[Entry, ...]
    parts: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Samples of the cards while a cell runs, or of the host.

    The host is sampled where there is no card. Pushed when a figure has changed.

    Attributes:
        t_ms: When it was read, milliseconds since the epoch.
        cell: The cell that runs.
        phase: Where a traced training loop is (`forward`); None elsewhere.
        step: Its step, from 0.
        cards: Each card that torch uses.
        host: The host's memory; None where torch could use a card.
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
        t_ms: When.
        cell: Which.
        peak: Highest allocated bytes on any one card while it ran, from the samples and torch's
            counter; from the events for a traced cell. None where no card was used.
        delta: What it took and left; None if it has no line in the history.
    """

    t_ms: float
    cell: Cell
    peak: int | None
    delta: CellDelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardInfo:
    """A card that torch could use here.

    Attributes:
        index: CUDA ordinal; NVML's where torch is not started.
        name: The driver's name.
        total: Bytes; the host's where it shares its memory.
        virtual: Whether it is nbmem's.
        shared: Whether it has the host's memory and none of its own.
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
        name: `forward`, or the user's own name of a block.
        step: From 0; None outside of a step.
        depth: 1 for a phase inside another.
        duration_ms: How long it took.
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
        t_ms: When it was finished.
        cell: The traced cell; None for an opened file.
        title: Its label.
        device: The card.
        duration_ms: How long it was recorded.
        peak: The highest figures, and where.
        at_peak: The whole card at the peak, by category; adds up to the card.
        at_end: The same at the end.
        parts_at_peak: What the host's memory was of at the peak, as in HostSample; empty of a card.
        phases: In order of their start, the first MOST_PHASES.
        phases_left_out: How many more there were.
        findings: Advice, the largest saving first.
        notes: One sentence each.
        error: The exception that ended it.
    """

    t_ms: float
    cell: Cell | None
    title: str
    device: CardInfo
    duration_ms: float
    peak: Peak
    at_peak: tuple[Entry, ...]
    at_end: tuple[Entry, ...]
    parts_at_peak: tuple[Entry, ...]
    phases: tuple[Phase, ...]
    phases_left_out: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Another process on a card.

    Attributes:
        card: CUDA ordinal.
        pid: Its number, as the driver sees it.
        name: The program's name; None where that is hidden.
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
