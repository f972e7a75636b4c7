"""Data model of a recording.

Capture writes a Session, and everything else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nbmem.core.session.events import Columns, Events, Layout, Stack
from nbmem.core.session.tensor_names import SENTENCE, printable_text, printable_texts

if TYPE_CHECKING:
    from nbmem.core.arrays import Codes, Ints
    from nbmem.core.session.frameworks import FrameworkReadings
    from nbmem.core.session.host_memory import MachineReadings
    from nbmem.core.session.oom import Refusal
    from nbmem.core.session.ranks import Rank
    from nbmem.core.session.spans import Span


MAX_LINES = 5_000
"""Limit of the recorded code's lines that a session contains, from the first line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One card, as its driver reports it.

    Attributes:
        index: CUDA ordinal.
        name: The driver's name of the card.
        total_bytes: The card's bytes from NVML, or else from cudaMemGetInfo. The host's bytes if
            the card shares its memory. Includes `spilled_bytes`.
        virtual: Whether this is nbmem's virtual GPU.
        engine: What a virtual GPU's figures come from: `rules` (nbmem.virtual) or `torch` (torch's
            own CUDA build); empty for a real one, and in files of versions before it.
        torch: Version of torch that used it.
        capability: Compute capability (major, minor); None if unknown.
        driver_bytes: Bytes of these that the driver reserves, from NVML; 0 if unknown.
        kind: torch's device type: `cuda`, `cpu` for the host, `mps`, `xpu`.
        allocator: The allocator that torch uses there: `native` is its own caching allocator.
        shared: Whether the card uses the host's memory and has none of its own.
        wddm: Whether Windows manages the card's memory (WDDM). Then the driver reports no process's
            bytes, and moves memory that does not fit to the host.
        spilled_bytes: Highest bytes that the host held for the card at one time, at least.
    """

    index: int
    name: str
    total_bytes: int
    virtual: bool
    torch: str
    capability: tuple[int, int] | None = None
    driver_bytes: int = 0
    kind: str = "cuda"
    allocator: str = "native"
    shared: bool = False
    wddm: bool = False
    spilled_bytes: int = 0
    engine: str = ""

    @property
    def is_amd(self) -> bool:
        """True if torch for ROCm used the card, or its name says AMD."""
        return "rocm" in self.torch or self.name.startswith(("AMD ", "Radeon "))

    @property
    def own_bytes(self) -> int:
        """The card's bytes without those that the host held for it."""
        return self.total_bytes - self.spilled_bytes

    @property
    def is_host(self) -> bool:
        """True if this is not a card but the machine's own memory."""
        return self.kind == "cpu"

    @property
    def keeps_history(self) -> bool:
        """True if torch's allocator has recorded its own history.

        Otherwise the events are those that nbmem's hooks observed.
        """
        return self.kind == "cuda" and self.allocator == "native"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterSamples(Columns):
    """Allocator counters that were read at known positions in the events.

    Attributes:
        t_ns: When, nanoseconds since the epoch.
        position: Index of the first event after the reading.
        allocated: Bytes in live blocks.
        active: Allocated plus blocks freed but still used by another stream.
        requested: Bytes that callers requested, of the active blocks.
        reserved: Bytes held from the driver.
    """

    t_ns: Ints
    position: Ints
    allocated: Ints
    active: Ints
    requested: Ints
    reserved: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CardSamples(Columns):
    """Readings of the whole card (NVML) over time.

    Each comes with the allocator's reserved bytes at that time.

    Attributes:
        t_ns: When, nanoseconds since the epoch.
        used: Bytes of the card in use by all processes; NOT_KNOWN without NVML and CUDA.
        process: Bytes that the driver counts for this process; NOT_KNOWN if it does not report
            them.
        reserved: The allocator's reserved bytes at the same moment.
        host: Resident bytes of this process in the host's memory; NOT_KNOWN if unread.
    """

    t_ns: Ints
    used: Ints
    process: Ints
    reserved: Ints
    host: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StorageLabels(Columns):
    """Storages that were identified: a weight, a gradient, an input.

    Each row gives what was at an address at a position in the events.

    Attributes:
        position: Event index at which it was observed.
        addr: Address of the storage.
        size: Bytes of the storage.
        category: Category codes.
        name: Index into the session's names: `model.conv1.weight (64, 3, 7, 7) float32`.
    """

    position: Ints
    addr: Ints
    size: Ints
    category: Codes
    name: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holders(Columns):
    """Objects that kept storages alive at the end of the recording.

    There is one row for each storage and each root that reaches it.

    `core.session.holders` decodes them. A storage's rows are adjacent, its best holder first.

    Attributes:
        addr: Address of the storage.
        size: Bytes of the storage.
        form: Index into the session's names: `(64, 3, 7, 7) float32`.
        kind: HolderKind codes.
        root: Index into the session's names: `checkpoint`.
        path: Index into the session's names: `checkpoint['model']['conv1.weight']`.
    """

    addr: Ints
    size: Ints
    form: Ints
    kind: Codes
    root: Ints
    path: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls(Columns):
    """Calls of modules and of optimizer steps in the training loop.

    Attributes:
        first: Event index at which it began; NOT_KNOWN if this was not recorded (a module that is
            called after another one's forward, before the next phase).
        last: Event index at which it returned.
        name: Index into the session's names: `net`, `adamw.step()`.
    """

    first: Ints
    last: Ints
    name: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectedFrees(Columns):
    """Frees that Python's garbage collector requested.

    Only reference cycles had kept that memory.

    Attributes:
        event: Index of the FREE_REQUESTED event, ascending.
        collection: Number of the collection, ascending.
    """

    event: Ints
    collection: Ints


PARTLY = 0.25
"""Part of a block below which operators have used it in part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockUses(Columns):
    """Columns that say what of a virtual card's blocks was not used.

    They have the blocks that lived on behind their last use, and those of which operators used a
    part alone. Small blocks and blocks from before the recording are left out.

    Attributes:
        addr: Address of the block.
        made: Position right behind its allocation.
        last: Position right behind its last use; an allocation counts as one.
        used: Bytes that operators have read and written of it, with repetitions; of a tensor that
            is indexed those of the result.
        in_backward: 1 if an operator of a backward has used it, else 0.
    """

    addr: Ints
    made: Ints
    last: Ints
    used: Ints
    in_backward: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BeforeReturn:
    """The moment before a function's variables were freed.

    Attributes:
        function: The function's name.
        event: Number of the card's events before that moment.
        freed: Number of its events when they were freed.
        holders: What kept storages alive then.
    """

    function: str
    event: int
    freed: int
    holders: Holders


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceTrace:
    """The recording of one card.

    Attributes:
        info: The card.
        release: Version of torch whose allocator rules apply.
        settings: The allocator's settings as torch reports them.
        start: Every segment and block before event 0. None if not recorded (a full ring buffer, a
            snapshot of the user's own); it is then computed backwards from the end.
        events: The allocator's actions.
        end: Every segment and block after the last event.
        dropped: Events before event 0 of this trace that were lost (full ring buffer).
        counter_samples: Counters at known positions.
        samples: Readings of the whole card.
        storage_labels: Which storage was at which address.
        other_processes: Bytes by process name where visible, at the end.
        holders: What kept storages alive at the end; None if not recorded.
        owners: What other allocators of this process held on the card; None if not recorded.
        machine: Parts of the host's memory beside the categories; None for a card.
        calls: What the loop called, in the order of the returns; None if not recorded.
        kept_pools: Private pools (Segments.pool) that a graph or a MemPool still used at the end;
            empty if not recorded.
        collected: What the garbage collector freed; None if not recorded.
        block_uses: What operators did not use of the blocks; None if not recorded.
        before_return: The moment before the function that made the peak freed its variables; None
            without one.
    """

    info: DeviceInfo
    release: str
    settings: Mapping[str, object]
    start: Layout | None
    events: Events
    end: Layout
    dropped: int
    counter_samples: CounterSamples
    samples: CardSamples
    storage_labels: StorageLabels
    other_processes: Mapping[str, int] = field(default_factory=dict)
    holders: Holders | None = None
    owners: FrameworkReadings | None = None
    machine: MachineReadings | None = None
    calls: Calls | None = None
    kept_pools: tuple[int, ...] = ()
    collected: CollectedFrees | None = None
    block_uses: BlockUses | None = None
    before_return: BeforeReturn | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The recorded code, where stacks were taken.

    Attributes:
        file: The cell's or script's file, as frames name it.
        lines: Its text, as Python ran it: at most `MAX_LINES`; empty if not available.
    """

    file: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Session:
    """One recorded stretch of a notebook or script, immutable once closed.

    Its name, names, notes and error are cut and escaped by
    `core.session.tensor_names.printable_text`.

    Attributes:
        name: The cell's or script's label.
        created_ns: When it was closed, nanoseconds since the epoch.
        devices: The traced cards.
        spans: Cells, phases and blocks in order of their start; parents precede their children.
        stacks: Python stacks that events refer to.
        names: Texts that labels, holders and calls refer to.
        notes: What went wrong or was left out, one sentence each.
        error: The exception that ended it ("OutOfMemoryError: ..."), or None.
        refusals: Requests that failed, in the order of their failures.
        facts: Facts about the program, as JSON (see capture.program); empty if not recorded.
        source: The code whose lines the stacks refer to; None without stacks.
        rank: Which process of a multi-process program this was; None for a single process.
    """

    name: str
    created_ns: int
    devices: tuple[DeviceTrace, ...]
    spans: tuple[Span, ...]
    stacks: tuple[Stack, ...] = ()
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    refusals: tuple[Refusal, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    rank: Rank | None = None

    def __post_init__(self) -> None:
        # The only sanitization of texts chosen by programs and other users. Views read them from
        # here.
        texts = {"names": printable_texts(self.names), "name": printable_text(self.name)}
        texts["notes"] = tuple(printable_text(note, SENTENCE) for note in self.notes)
        error = None if self.error is None else printable_text(self.error, SENTENCE)
        source = self.source and replace(
            self.source,
            lines=tuple(printable_text(line.expandtabs()) for line in self.source.lines),
        )
        for name, value in {**texts, "error": error, "source": source}.items():
            object.__setattr__(self, name, value)
