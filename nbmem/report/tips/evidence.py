"""What the rules look at: one card of one recording, with the questions that several rules ask."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.holders import HolderKind, held_storages
from nbmem.core.units import MIB
from nbmem.report.analysis.cache_releases import emptied, had_room, released_by_need
from nbmem.report.analysis.growth import growth, step_ends, step_peaks
from nbmem.report.analysis.program_names import chief_model, chief_optimizer, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from nbmem.core.session.categories import Category
    from nbmem.core.session.events import Stack
    from nbmem.core.session.holders import HeldStorage
    from nbmem.core.session.session import DeviceTrace, Session
    from nbmem.report.analysis.growth import Growth
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.ledger.card_ledger import Books
    from nbmem.report.model import PhaseRow, Report

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

LEAST = MIB
"""Bytes below which nothing is worth a tip."""
LEAST_SHARE = 0.02
"""... and the share of the highest reserved bytes below which it is not, either."""
NEARLY_FULL = 0.9
"""The share of the card in use from which on memory is short."""
OF_THE_CARD = 0.05
"""The share of a card with room below which bytes that nobody misses are not worth a word."""


class Evidence:
    """One recording, as rules read it.

    Args:
        session: What was recorded.
        books: The card's books.
        report: The same, ready to draw.
        everything: Whether all tips were asked for, also those that only matter on a full card.
    """

    def __init__(
        self, session: Session, books: Books, report: Report, *, everything: bool = False
    ) -> None:
        self.session = session
        self.books = books
        self.report = report
        self.everything = everything

    @property
    def trace(self) -> DeviceTrace:
        """The card's part of the session."""
        return self.books.trace

    @property
    def card_known(self) -> bool:
        """Whether the card's size is known; a snapshot of the user's own does not say."""
        return self.trace.info.torch != "unknown"

    def worth(self, count: int) -> bool:
        """Whether so many bytes are worth a tip in a recording of this size."""
        return count >= max(LEAST, LEAST_SHARE * self.report.peak.reserved)

    def matters(self, count: int, share: float = OF_THE_CARD) -> bool:
        """Whether so many bytes would be missed: memory is short, or they are a share of the card.

        Of a card whose size is not known they are; and who asks for all tips gets them.
        """
        if self.everything or not self.card_known or self.short is not None:
            return self.worth(count)
        return self.worth(count) and count >= share * self.trace.info.total_bytes

    def dominates(self, count: int, share: float) -> bool:
        """Whether so many bytes are at least a share of what was allocated at the peak."""
        return self.worth(count) and count >= share * self.report.peak.allocated

    # --- is memory short?

    @cached_property
    def ran_out(self) -> bool:
        """Whether a request could not be served, and the program had to do without."""
        return self.books.refused.ran_out

    @cached_property
    def retries(self) -> tuple[int, ...]:
        """Where torch had to give cached memory back before the driver had room."""
        found = released_by_need(self.trace)
        return tuple(at for at in found if not (self.card_known and had_room(self.books, at)))

    @cached_property
    def emptied(self) -> tuple[int, ...]:
        """Where the user called empty_cache()."""
        return emptied(self.trace)

    @cached_property
    def fullest(self) -> Ledger:
        """The card when most was reserved."""
        return self.books.ledger(int(np.argmax(self.books.reserved)))

    @cached_property
    def short(self) -> str | None:
        """Why memory is short, as the beginning of a sentence; None where there is room."""
        if self.ran_out:
            return "The card ran out of memory"
        if self.retries:
            return "The driver had no more memory, so torch gave its cache back and asked again"
        full = self.fullest
        if self.card_known and full.used >= NEARLY_FULL * full.total_bytes:
            return f"{100 * full.used / full.total_bytes:.0f}% of the card was in use"
        return None

    # --- what happened

    @cached_property
    def step_ends(self) -> Ints:
        """The position at which each step ends."""
        return step_ends(self.books)

    @cached_property
    def growing(self) -> tuple[Growth, ...]:
        """What is more at the end of every step, the steepest first."""
        return growth(self.books)

    def phases(self, *names: str) -> list[PhaseRow]:
        """The phases of these names, in order."""
        return [row for row in self.report.phases if row.name in names and row.depth == 0]

    @cached_property
    def trains(self) -> bool:
        """Whether an optimizer stepped."""
        return bool(self.phases("optimizer"))

    def trains_before(self, position: int) -> bool:
        """Whether an optimizer stepped before a position."""
        books = self.books
        spans = (span for _, span in books.phases.spans)
        return any(s.name == "optimizer" and books.bounds(s)[0] < position for s in spans)

    def largest_step(self) -> tuple[int, int]:
        """Where the step begins and ends that allocated most."""
        ends, tops = [0, *self.step_ends.tolist()], step_peaks(self.books)
        at = tops.index(max(tops))
        first = ends[at] if at else self._first_step_begins()
        return first, ends[at + 1]

    def _first_step_begins(self) -> int:
        books = self.books
        spans = (span for _, span in books.phases.spans)
        return min((books.bounds(s)[0] for s in spans if s.step is not None), default=0)

    def born_in_stacks(self, wanted: Callable[[Stack], bool]) -> Ints:
        """Rows of the allocations whose stack is such a one; none where no stacks were taken."""
        such = np.array([wanted(stack) for stack in self.session.stacks] + [False])
        return np.flatnonzero(such[self.books.allocations.stack])

    def in_private_pool(self) -> Mask:
        """Which allocations lie in a pool of a CUDA graph's, that still lived at the end."""
        segments = self.trace.end.segments
        private = segments[segments.pool != 0]
        addr = self.books.allocations.addr
        row = np.searchsorted(private.addr, addr, side="right") - 1
        if not len(private):
            return np.zeros(len(addr), bool)
        inside: Mask = (row >= 0) & (addr < private.addr[row] + private.size[row])
        return inside

    def peak_without(self, rows: Ints) -> int:
        """The highest allocated bytes, had these allocations not been."""
        a, books = self.books.allocations, self.books
        change = np.zeros(books.events + 2, np.int64)
        np.add.at(change, np.maximum(a.born[rows], -1) + 1, a.block[rows])
        np.subtract.at(change, a.freed[rows] + 1, a.block[rows])
        return int((books.allocated - np.cumsum(change)[: books.events + 1]).max())

    def sum_at(self, position: int, *categories: Category) -> int:
        """Bytes of some categories at a position."""
        row = self.books.held(np.array([position], np.int64))[0]
        return int(row[list(categories)].sum())

    # --- what lives at the end, and who keeps it

    @cached_property
    def held(self) -> tuple[HeldStorage, ...]:
        """What lived at the end, with its holders; empty where nobody looked."""
        return held_storages(self.session, self.trace) or ()

    @cached_property
    def _block_at(self) -> dict[int, tuple[int, int]]:
        a = self.books.allocations
        rows = self.books.live(self.books.events)
        found = zip(a.addr[rows].tolist(), rows.tolist(), a.block[rows].tolist(), strict=True)
        return {addr: (row, block) for addr, row, block in found}

    def row_of(self, held: HeldStorage) -> int | None:
        """The allocation of a storage; None if torch's allocator did not make it."""
        found = self._block_at.get(held.addr)
        return None if found is None else found[0]

    def held_in(self, rows: Iterable[int]) -> list[HeldStorage]:
        """Storages that live at the end in these allocations."""
        mine = {int(row) for row in rows}
        return [held for held in self.held if self.row_of(held) in mine]

    def freed_with(self, storages: Iterable[HeldStorage]) -> int:
        """Bytes by which memory_allocated() falls when these go: those of their blocks."""
        return sum(self._block_at[h.addr][1] for h in storages if h.addr in self._block_at)

    def item_of(self, place: str) -> str | None:
        """The one other name for an item (or its graph) of a list: what the user's loop puts there.

        Args:
            place: The list, as one types it.
        """
        names: set[str] = set()
        for held in self.held:
            paths = [way.path.rpartition(" ")[2] for way in held.holders]
            if any(path.startswith(f"{place}[") for path in paths):
                names.update(filter(str.isidentifier, paths))
        return names.pop() if len(names) == 1 else None

    def only_in(
        self,
        *kinds: HolderKind,
        root: str | None = None,
        beside: frozenset[HolderKind] = frozenset(),
    ) -> list[HeldStorage]:
        """Storages that nothing else keeps.

        Args:
            kinds: What may keep them.
            root: The one root that may; None for all roots of these kinds.
            beside: Kinds that may keep them, too, since they go with the others.
        """
        return [
            h
            for h in self.held
            if any(k.kind in kinds and (root is None or k.root == root) for k in h.holders)
            and all(
                (k.kind in kinds and (root is None or k.root == root)) or k.kind in beside
                for k in h.holders
            )
        ]

    # --- what the program is made of

    def fact(self, name: str) -> Any:
        """One of the session's facts; None where nobody looked."""
        return self.session.facts.get(name)

    @property
    def modules(self) -> list[dict[str, Any]]:
        """The modules that were met and lived at the end."""
        return self.fact("modules") or []

    @property
    def optimizers(self) -> list[dict[str, Any]]:
        """The optimizers that were met and lived at the end."""
        return self.fact("optimizers") or []

    @property
    def calls(self) -> list[dict[str, Any]]:
        """How modules were called."""
        return self.fact("calls") or []

    def model(self) -> dict[str, Any] | None:
        """The largest module that was called."""
        return chief_model(self.session)

    def model_name(self) -> str:
        """What the notebook calls it, or else its class."""
        found = self.model()
        return "model" if found is None else str(found["name"])

    def model_code(self) -> str | None:
        """The model as it may be typed; None where the notebook has no name for it."""
        return typed(self.model())

    def optimizer(self) -> dict[str, Any] | None:
        """The optimizer with the most parameters."""
        return chief_optimizer(self.session)

    def optimizer_code(self) -> str | None:
        """What the notebook calls it; None where it has no name for it."""
        return typed(self.optimizer())
