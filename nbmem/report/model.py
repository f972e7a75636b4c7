"""The view model: data that every view draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.categories import Category
    from nbmem.core.session.holders import Holder
    from nbmem.core.session.ranks import Rank
    from nbmem.core.session.session import DeviceInfo
    from nbmem.report.exploration import Details, Lines, StepGrowth
    from nbmem.report.ledger.balance import Ledger

Ground = Literal["exact", "simulated", "estimated"]
"""How the bytes of a saving are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A position in a recording, described for a person.

    Attributes:
        event: Index of the next event.
        t_ns: Nanoseconds since the start of the recording.
        phase, step: Innermost phase and its step; None outside of one.
        line: `file.py:12 in function` of the allocation that made the peak, if a stack was taken.
    """

    event: int
    t_ns: int
    phase: str | None = None
    step: int | None = None
    line: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The highest figures of a recording, each with its own moment.

    A figure is None if it is not known.

    Attributes:
        at: Where `allocated` was highest; the ledger at the peak is of this moment.
        process: Highest process figure: reserved peak plus context; None without NVML.
        reserved_at, process_at: Where each was first reached; None if not known.
    """

    at: Moment
    allocated: int
    reserved: int
    active: int
    requested: int
    process: int | None
    reserved_at: Moment | None = None
    process_at: Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """One phase: its bytes at the start, at the peak and at the end.

    Attributes:
        name: A phase (see `core.session.spans.Span`), or the user's own name for a block.
        step: From 0; None outside of a step.
        depth: 0, or 1 for a phase inside another (recompute in backward).
        t0_ns: Start, since the start of the recording.
        t1_ns: End.
        allocated_before: Allocated bytes at its start.
        allocated: Allocated bytes at its end.
        reserved: Reserved bytes at its end.
        peak_allocated: Highest allocated bytes inside.
        peak_reserved: Highest reserved bytes inside.
        ledger_at_peak: The card at the highest allocated moment inside.
        ledger_at_end: The card at its end.
    """

    name: str
    step: int | None
    depth: int
    t0_ns: int
    t1_ns: int
    allocated_before: int
    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    ledger_at_peak: Ledger
    ledger_at_end: Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One live allocation at the peak.

    Attributes:
        name: Its description (`model.conv1.weight (64, 3, 7, 7) float32`), or None.
        category: Its category.
        requested: Requested bytes: its size, in every view. The category `rounding` counts the
            block's other bytes.
        block: Bytes by which allocated falls when it is freed.
        born_in: Phase and step that allocated it (`forward, step 0`), or None before the recording.
        line: `file.py:12 in function` that made it, if a stack was taken.
        form: Shape and dtype, if Python showed them: `(64, 3, 7, 7) float32`.
        holders: Paths that held it at the end, best first; empty if holders were not read or it was
            freed.
    """

    name: str | None
    category: Category
    requested: int
    block: int
    born_in: str | None
    line: str | None
    form: str | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """An action of nbmem, chosen from a fixed list.

    It is never built as code from strings.

    Attributes:
        name: The subcommand of `%nbmem` ("free").
        arguments: Its arguments ("cache",).
    """

    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One piece of advice, with what this run showed for it.

    Attributes:
        rule: Key of the rule that found it (`checkpoint_kept`).
        title: One sentence: what to do and what it saves.
        evidence: What this recording showed, in one or two sentences with figures.
        low: Bytes that it saves at least.
        high: Bytes that it saves at most; equal to `low` if the saving is known.
        ground: How the bytes are known: counted, simulated on the recorded events, estimated.
        code: Code to paste, or None.
        command: The nbmem command that does it, or None if only the user can.
        measured: Bytes that it saved when it was applied, or None.
    """

    rule: str
    title: str
    evidence: str
    low: int
    high: int
    ground: Ground
    code: str | None = None
    command: Command | None = None
    measured: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """Live allocations that one name, or one line, accounts for.

    Attributes:
        name: Its display name (`model`, `checkpoint`, `Out[12]`), or None.
        category: None where nothing was traced.
        requested: Requested bytes, as in every view.
        count: How many there are.
        line: `file.py:12 in function` that made unnamed ones, if stacks were taken.
        older: Whether they are activations of a step before the failed one.
    """

    name: str | None
    category: Category | None
    requested: int
    count: int
    line: str | None = None
    older: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OomReport:
    """An explained out-of-memory error.

    A fact is None if it is not known.

    Attributes:
        at: Where it happened; the line is that of the request.
        device: CUDA ordinal.
        asked: Bytes of the requested block.
        wanted: Bytes requested from the driver, as no cached block was suitable.
        layer: The module that was running: `model.layer3.0.conv1 (Conv2d)`.
        operator: The backward node that was running: `ConvolutionBackward0`.
        thread: Name of the thread, if not the main one.
        caught: Whether the program continued.
        free: Free on the card, after torch had released what it could.
        limit: Bytes that this process may reserve, if a memory fraction is set.
        allocated: In live blocks.
        reserved: Held from the driver.
        others: Bytes held by other processes, and by the driver itself.
        given_back: Cached bytes that torch released before the request failed.
        largest: The largest free cached block that could serve such a request.
        pieces: Bytes of all free cached blocks that could.
        pooled: Free bytes of private pools, which serve only the CUDA graphs that own them.
        reason: Why the request failed, in one or two sentences.
        ledger: The card at that moment.
        holders: The largest, descending.
        remedies: Changes that would have sufficed, each tried in the simulator.
        left: Bytes that only the error's traceback still holds.
        command: The command that frees those bytes.
        notes: One sentence each.
        calls: The user's lines that led to the request, the innermost first; empty if not known.
    """

    at: Moment
    device: int
    asked: int | None
    wanted: int | None
    layer: str | None = None
    operator: str | None = None
    thread: str | None = None
    caught: bool = False
    free: int | None = None
    limit: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    others: int | None = None
    given_back: int | None = None
    largest: int | None = None
    pieces: int | None = None
    pooled: int | None = None
    reason: str
    ledger: Ledger | None = None
    holders: tuple[HeldGroup, ...] = ()
    remedies: tuple[Finding, ...] = ()
    left: int | None = None
    command: Command | None = None
    notes: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestPart:
    """One of the largest categories of this process at the peak.

    Attributes:
        category: The category. CACHED_RELEASABLE stands for all that torch caches.
        held: Its bytes.
        owner: The module or variable that holds the most of it: `model.features`, or None.
        owned: Bytes of the owner, or of the part.
        part: The part that is most of it and says more than an owner: `KV cache`; or None.
    """

    category: Category
    held: int
    owner: str | None = None
    owned: int = 0
    part: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFit:
    """The answer for one card: whether the recorded requests are served.

    Attributes:
        card: nbmem's name of the card (`T4`).
        total: Bytes that nvidia-smi reports of it.
        fits: Whether every request is served; None if that could not be decided in time.
        margin: Whether `fit`'s margin stays free as well.
        spare: Bytes that stay free on it at the highest moment; None where it does not fit.
        short: Bytes more with which it would surely fit; None where it does.
        releases: Whether torch must release cached memory for it, which takes time.
        exact: Whether another run would show the same; else it is an estimate.
        how: How it is known, in one sentence.
    """

    card: str
    total: int
    fits: bool | None
    margin: bool = True
    spare: int | None = None
    short: int | None = None
    releases: bool = False
    exact: bool = False
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldRunOn:
    """The common cards, and whether a recording would run on each.

    Attributes:
        cards: The cards, the smallest first; empty if nothing is known, which `limits` explains.
        limits: What cannot be known from the recording, one sentence each.
        request_only: Whether memory ran out, and what would have followed is not known.
    """

    cards: tuple[CardFit, ...] = ()
    limits: tuple[str, ...] = ()
    request_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """The curves of a recording at chosen moments.

    The peak of every interval is among them.

    Attributes:
        t_ns: Nanoseconds since the start of the recording, ascending, shape (n,).
        event: Index of the next event at each moment, shape (n,).
        held: Bytes by category, shape (n, len(Category)).
        reserved: Bytes held from the driver, shape (n,).
        bands: Phases as (t0_ns, t1_ns, name, step), depth 0 only.
        parts: Parts of the host's memory, shape (n, len(host_memory.PARTS)); None for a card.
    """

    t_ns: Ints
    event: Ints
    held: Ints
    reserved: Ints
    bands: tuple[tuple[int, int, str, int | None], ...]
    parts: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The data that a view draws of one recording on one card.

    Attributes:
        title: The cell's or script's label.
        device: The card.
        duration_ns: How long it was recorded.
        peak: The highest figures.
        ledger_at_start: The card before the first event.
        ledger_at_peak: The card at the highest allocated moment.
        ledger_at_end: The card after the last event.
        phases: In order of their start.
        holdings: The largest live allocations at the peak, descending.
        timeline: The curves.
        events: How many events were recorded.
        dropped_events: How many were lost before the first of them.
        error: The exception that ended the recording, or None.
        notes: One sentence each.
        findings: Advice, the largest saving first.
        ooms: Its out-of-memory errors, the most important first.
        details: Data on moments other than the peak; None if they were not gathered.
        lines: Memory that each line of the recorded code took; None without stacks.
        rank: Its rank in a world; None for a program of one process.
        at_highest: The card when this process held the most; None if that moment is not known.
        largest: What was the most of it at the peak. If torch does not hold that, the most of what
            torch holds follows.
        cards: How many cards were recorded.
        card_known: Whether the recording names the card and its size. A snapshot does not.
        ran_out: Whether an out-of-memory error ended it, also where `ooms` stands elsewhere.
        would_run_on: Whether it would run on the common cards; None if that was not asked.
        growth: What grows from step to step, by holder; None if no tip is about that.
    """

    title: str
    device: DeviceInfo
    duration_ns: int
    peak: Peak
    ledger_at_start: Ledger
    ledger_at_peak: Ledger
    ledger_at_end: Ledger
    phases: tuple[PhaseRow, ...]
    holdings: tuple[Holding, ...]
    timeline: Timeline
    events: int
    dropped_events: int
    error: str | None
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    ooms: tuple[OomReport, ...] = ()
    details: Details | None = None
    lines: Lines | None = None
    rank: Rank | None = None
    at_highest: Ledger | None = None
    largest: tuple[LargestPart, ...] = ()
    cards: int = 1
    card_known: bool = True
    ran_out: bool = False
    would_run_on: WouldRunOn | None = None
    growth: StepGrowth | None = None

    def __repr__(self) -> str:
        peak = format_bytes(self.peak.allocated)
        return f"<Report of {self.title!r}: at most {peak} allocated on {self.device.name}>"
