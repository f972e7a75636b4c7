"""Data that every view draws of a world: ranks, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session.categories import Category
    from nbmem.core.session.events import Stack
    from nbmem.core.session.oom import Refusal
    from nbmem.core.session.ranks import Rank
    from nbmem.core.session.session import DeviceInfo
    from nbmem.report.model import Timeline

State = Literal["finished", "failed", "running", "silent", "lost"]
"""How a rank ended: by itself, with an exception, still running, running but its interpreter is
held, or without a record (killed, or its machine is gone)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank's figures; None where its file has none.

    Attributes:
        rank: Number of the rank.
        path: Its file.
        title: The script's name.
        state: How it ended.
        device: The card on which it held the most.
        allocated: Highest bytes in live blocks.
        reserved: Highest bytes held from the driver.
        process: Highest figure that nvidia-smi shows for it.
        phase, step: Where `allocated` was highest.
        held: Bytes of each category at that moment, exactly those of the card; empty for a rank
            without a session.
        largest: For each live category at that moment, the name without numbers that holds most of
            it, and its bytes. Unnamed memory is left out.
        own_peak: Peak of the host memory that belongs to this rank alone (`core.world.Rank`).
        last_ns: Time of its last record, nanoseconds since the epoch.
        last_step: Its step at that time.
        place: Location of its main thread at that time (`files.journal.Entry`).
        place_ns: Time at which it reached that location.
        refusal: The first request that could not be served.
        error: The exception that ended it.
        timeline: What it held over its run; None for a rank without a session.
    """

    rank: Rank
    path: Path
    title: str
    state: State
    device: DeviceInfo | None
    allocated: int | None = None
    reserved: int | None = None
    process: int | None = None
    phase: str | None = None
    step: int | None = None
    held: Mapping[Category, int] = field(default_factory=dict)
    largest: Mapping[Category, tuple[str, int]] = field(default_factory=dict)
    own_peak: int | None = None
    last_ns: int
    last_step: int | None = None
    place: Stack = ()
    place_ns: int | None = None
    refusal: Refusal | None = None
    error: str | None = None
    timeline: Timeline | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The range of one category over the ranks, each at its own peak.

    Attributes:
        category: The category.
        low, high: Bytes of the rank that holds the least, and the most.
        low_rank, high_rank: Which they are; the first of equals.
        mean: Bytes on average, rounded down.
    """

    category: Category
    low: int
    low_rank: int
    high: int
    high_rank: int
    mean: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """A rank that peaks higher than those that do the same work.

    Attributes:
        rank: Which.
        more: Bytes above the median of the others.
        median: That median of allocated bytes.
        by_category: Bytes above the median by category, the largest first.
        cause: The one that the others follow from, as far as that is known; None if none is
            above.
        named: What holds most of the cause, by its name; None where it is not known.
    """

    rank: int
    more: int
    median: int
    by_category: tuple[tuple[Category, int], ...]
    cause: Category | None = None
    named: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAtFailure:
    """A rank's memory when another rank ran out of memory.

    Attributes:
        rank: Which.
        t_ns: The moment of the figures: the same, or the last before it that was written down.
        allocated, reserved: Bytes; None where nothing was written down by then.
        held: Bytes by category, as far as they are known.
        phase, step: What it was doing.
    """

    rank: int
    t_ns: int | None
    allocated: int | None = None
    reserved: int | None = None
    held: Mapping[Category, int] = field(default_factory=dict)
    phase: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOut:
    """The rank that ran out of memory first.

    Attributes:
        rank: Which.
        refusal: Its request.
        others: What the other ranks held at that moment, by rank.
    """

    rank: int
    refusal: Refusal
    others: tuple[RankAtFailure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCard:
    """A card that several ranks used.

    Attributes:
        host: Its machine.
        card: Its identifier on that machine.
        total: Its bytes; None where not known.
        ranks: The ranks.
        together: Their highest process figures (or else reserved bytes) together.
    """

    host: str
    card: str
    total: int | None
    ranks: tuple[int, ...]
    together: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory that the ranks of one machine took.

    Attributes:
        host: The machine.
        total: Its bytes, or those of the container.
        ranks: The ranks that said what they took.
        together: What was their own, each at its highest: as much as they held at once, or more.
    """

    host: str
    total: int
    ranks: tuple[int, ...]
    together: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldReport:
    """The report of a world of ranks.

    Attributes:
        title: The script's name.
        size: Ranks in the world.
        rows: Those that left a file, by rank.
        missing: Ranks without a file that no other rank represents.
        highest: The row that peaked highest; None where no rank used a card.
        spreads: By category, those that some rank holds.
        imbalances: Ranks that differ without a reason, the largest first.
        first_out: The rank that ran out of memory first; None where none did.
        shared: Cards of several ranks.
        hosts: What ranks of real processes took of their machines' memory, by machine.
        notes: What is odd about the folder, one sentence each.
    """

    title: str
    size: int
    rows: tuple[RankRow, ...]
    missing: tuple[int, ...]
    highest: RankRow | None
    spreads: tuple[Spread, ...]
    imbalances: tuple[Imbalance, ...]
    first_out: FirstOut | None
    shared: tuple[SharedCard, ...]
    hosts: tuple[HostMemory, ...]
    notes: tuple[str, ...]

    @property
    def device(self) -> DeviceInfo | None:
        """The device of the rank that peaked highest; None where none was used."""
        return None if self.highest is None else self.highest.device

    @property
    def on_host(self) -> bool:
        """True if the ranks train on the CPU.

        Its memory has no reserved bytes.
        """
        return self.device is not None and self.device.is_host
