"""One card of a recording, with the queries that several rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from nbmem.core.session.holders import HeldStorage, Holder, HolderKind
from nbmem.core.units import MIB
from nbmem.report.analysis.cache_releases import had_room, releases_by_user, releases_for_requests
from nbmem.report.analysis.growth import Growth, find_growth, step_ends
from nbmem.report.analysis.growth_candidates import Candidate, candidates_at
from nbmem.report.analysis.module_passes import Passes
from nbmem.report.analysis.program_names import code_name, largest_model, largest_optimizer
from nbmem.report.tips.weight_names import weight_forms

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints, Mask
    from nbmem.core.session.categories import Category
    from nbmem.core.session.events import Stack
    from nbmem.core.session.session import DeviceTrace, Session
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.ledger.card_ledger import CardLedger
    from nbmem.report.model import PhaseRow, Report

Found = TypeVar("Found")
MIN_BYTES = MIB
"""Bytes below which no tip is given."""
MIN_SHARE = 0.02
"""Share of the highest reserved bytes below which no tip is given, either."""
NEARLY_FULL = 0.9
"""The used share of the card from which memory is short."""
OF_THE_CARD = 0.05
"""On a card with room, the share below which unused bytes are not mentioned."""
LARGE_PART = 0.25
"""Part of the peak from which a remedy without a price is told on a card with room."""
NEEDLESS, NEEDLESS_OF_CARD = 0.1, 0.01
"""Parts of the peak and of the card from which memory that serves nothing is told."""
MOSTLY = 0.5
"""Part of a variable's allocations that are freed before the end if the variable is."""


class Evidence:
    """One card of a recording, as rules read it.

    Args:
        session: What was recorded.
        card_ledger: The card's ledger.
        report: The card's report, ready to draw.
        everything: Whether all tips were requested, also those that matter only on a full card.
    """

    def __init__(
        self, session: Session, card_ledger: CardLedger, report: Report, *, everything: bool = False
    ) -> None:
        self.session = session
        self.card_ledger = card_ledger
        self.report = report
        self.everything = everything
        self._found: dict[object, Any] = {}

    def once(self, detector: Callable[[Evidence], Found]) -> Found:
        """Return what a detector finds; it runs once for a recording."""
        if detector not in self._found:
            self._found[detector] = detector(self)
        return cast("Found", self._found[detector])

    @property
    def trace(self) -> DeviceTrace:
        """The card's trace in the session."""
        return self.card_ledger.trace

    @property
    def card_known(self) -> bool:
        """True if the card's size is known; snapshots do not contain it."""
        return self.trace.info.torch != "unknown"

    def worth(self, count: int) -> bool:
        """Return whether so many bytes are worth a tip here."""
        return count >= max(MIN_BYTES, MIN_SHARE * self.report.peak.reserved)

    def matters(self, count: int, share: float = OF_THE_CARD) -> bool:
        """Return whether so many bytes would be missed on this card.

        They must be worth a tip. They matter if memory is short, or if they are a share of the
        card. They also matter if the card's size is not known, or if all tips are requested.
        """
        if self.everything or not self.card_known or self.short is not None:
            return self.worth(count)
        return self.worth(count) and count >= share * self.trace.info.total_bytes

    def dominates(self, count: int, share: float) -> bool:
        """Return whether so many bytes are a share of the allocated peak.

        They must be worth a tip, too.
        """
        return self.worth(count) and count >= share * self.report.peak.allocated

    def is_large_part(self, count: int) -> bool:
        """Return whether so many bytes matter, or are much of the peak.

        For a remedy without a price: a quarter of the peak, and a fiftieth of the card.
        """
        part = self.matters(count, MIN_SHARE) and self.dominates(count, LARGE_PART)
        return self.matters(count) or part

    def is_needless(self, gain: int) -> bool:
        """Return whether the peak falls enough to tell of what serves nothing.

        A quarter of it, however small the program, or a tenth and 1% of the card.
        """
        small = self.dominates(gain, NEEDLESS) and self.matters(gain, NEEDLESS_OF_CARD)
        return self.dominates(gain, LARGE_PART) or small

    @cached_property
    def weight_forms(self) -> dict[str, str]:
        """Shape and type of each weight seen, by its name in the notebook."""
        return weight_forms(self.trace.storage_labels, self.session.names)

    @cached_property
    def sorted_weights(self) -> list[str]:
        """The names of all weights seen, sorted."""
        return sorted(self.weight_forms)

    # --- is memory short?

    @cached_property
    def ran_out(self) -> bool:
        """True if a request could not be served and the program went without."""
        return self.card_ledger.refused.ran_out

    @cached_property
    def retries(self) -> tuple[int, ...]:
        """Positions where torch released its cache before the driver had room."""
        found = releases_for_requests(self.trace)
        return tuple(at for at in found if not (self.card_known and had_room(self.card_ledger, at)))

    @cached_property
    def emptied(self) -> tuple[int, ...]:
        """Positions where the user called empty_cache()."""
        return releases_by_user(self.trace)

    @cached_property
    def fullest(self) -> Ledger:
        """The card's ledger when most bytes were reserved."""
        return self.card_ledger.ledger(int(np.argmax(self.card_ledger.reserved)))

    @cached_property
    def short(self) -> str | None:
        """The reason why memory is short; None where there is room.

        The text is the beginning of a sentence.
        """
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
        return step_ends(self.card_ledger)

    @cached_property
    def growing(self) -> tuple[Growth, ...]:
        """The variables that grow with each iteration, the steepest first.

        Those of gradient cycles have a rule of their own.
        """
        in_cycles = self.in_gradient_cycle
        return tuple(
            one
            for one in find_growth(self.card_ledger, candidates=self.candidates)
            if in_cycles[np.concatenate([one.rows, one.graph_rows])].mean() <= MOSTLY
        )

    @cached_property
    def grown_at_peak(self) -> tuple[Growth, ...]:
        """The variables that had grown at the peak and were freed before the end.

        Not by the garbage collector: a rule of its own tells of what it has freed.
        """
        collected = self.trace.collected
        by_collector = () if collected is None else collected.event
        freed, events = self.card_ledger.allocations.freed, self.card_ledger.events
        peak = int(np.argmax(self.card_ledger.allocated))
        found, known = find_growth(self.card_ledger, peak), {one.title for one in self.growing}
        there = [freed[one.rows][freed[one.rows] >= peak] for one in found]
        return tuple(
            one
            for one, ends in zip(found, there, strict=True)
            if len(ends)
            and (ends < events).mean() > MOSTLY
            and one.title not in known
            and not np.isin(ends, by_collector).any()
        )

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Live allocations at the end, by the variable that keeps them."""
        return candidates_at(self.card_ledger, self.card_ledger.events)

    @cached_property
    def passes(self) -> Passes:
        """The allocations by phase and by called module."""
        return Passes(self.card_ledger)

    def phases(self, *names: str) -> list[PhaseRow]:
        """Return the report's phases of these names, in order.

        Phases inside another one are left out.
        """
        return [row for row in self.report.phases if row.name in names and row.depth == 0]

    @cached_property
    def trains(self) -> bool:
        """True if an optimizer stepped."""
        return bool(self.phases("optimizer"))

    def trains_before(self, position: int) -> bool:
        """Return whether an optimizer stepped before a position."""
        card_ledger = self.card_ledger
        spans = (span for _, span in card_ledger.phases.spans)
        return any(s.name == "optimizer" and card_ledger.bounds(s)[0] < position for s in spans)

    def rows_with_stack(self, wanted: Callable[[Stack], bool]) -> Ints:
        """Return rows of the allocations whose stack satisfies a condition.

        There are none where no stacks were taken.
        """
        such = np.array([wanted(stack) for stack in self.session.stacks] + [False])
        return np.flatnonzero(such[self.card_ledger.allocations.stack])

    def live_at_peak(self, rows: Ints) -> Mask:
        """Return a mask of the allocations that live at the peak."""
        a, top = self.card_ledger.allocations, self.report.peak.at.event
        lives: Mask = (a.allocated_at[rows] < top) & (a.freed[rows] >= top)
        return lives

    def peak_saving(self, rows: Ints, since: Ints | int = -1) -> int:
        """Return by how much the allocated peak falls without these allocations.

        Args:
            rows: The allocations.
            since: Position from which each of them is free; by default it was never made.
        """
        return self.report.peak.allocated - int(self.allocated_without(rows, since).max())

    def allocated_without(self, rows: Ints, since: Ints | int = -1, after: int = 0) -> Ints:
        """Return the curve of the allocated bytes without these allocations.

        Args:
            rows: The allocations.
            since: Position from which each of them is free; by default it was never made.
            after: Number of events for which each of them lives nevertheless.
        """
        a = self.card_ledger.allocations
        begins = np.maximum(a.allocated_at[rows], since) + after
        return self.card_ledger.allocated_without(rows, np.minimum(begins, a.freed[rows]))

    def freed_with(self, rows: Ints) -> Mask:
        """Return a mask of what is freed along with some allocations.

        No allocation is made in between. These are in it, too.
        """
        a = self.card_ledger.allocations
        burst = np.searchsorted(np.sort(a.allocated_at), a.freed)
        selected: Mask = np.isin(burst, burst[rows])
        return selected

    def sum_at(self, position: int, *categories: Category) -> int:
        """Sum the bytes of some categories at a position."""
        row = self.card_ledger.held(np.array([position], np.int64))[0]
        return int(row[list(categories)].sum())

    # --- what is live at the end, and its holders

    @property
    def held(self) -> tuple[HeldStorage, ...]:
        """The storages that lived at the end, with their holders.

        Empty if holders were not searched.
        """
        return self.card_ledger.storages

    @cached_property
    def _block_at(self) -> dict[int, tuple[int, int]]:
        a = self.card_ledger.allocations
        rows = self.card_ledger.live(self.card_ledger.events)
        found = zip(a.addr[rows].tolist(), rows.tolist(), a.block[rows].tolist(), strict=True)
        return {addr: (row, block) for addr, row, block in found}

    @cached_property
    def in_gradient_cycle(self) -> Mask:
        """Mask of the allocations that only gradients with a graph keep."""
        found = np.zeros(len(self.card_ledger.allocations.addr), bool)
        rows = map(self.row_of, self.held_only_by(HolderKind.GRADIENT_CYCLE))
        found[[row for row in rows if row is not None]] = True
        return found

    def row_of(self, held: HeldStorage) -> int | None:
        """Return the allocation of a storage; None if torch's allocator has none."""
        found = self._block_at.get(held.addr)
        return None if found is None else found[0]

    def held_in(self, rows: Iterable[int]) -> list[HeldStorage]:
        """Return the storages that live at the end in these allocations."""
        selected = {int(row) for row in rows}
        return [held for held in self.held if self.row_of(held) in selected]

    def freed_bytes(self, storages: Iterable[HeldStorage]) -> int:
        """Return by how much freeing storages lowers memory_allocated().

        In bytes: those of their blocks.
        """
        return sum(self._block_at[h.addr][1] for h in storages if h.addr in self._block_at)

    def held_only_by(
        self,
        *kinds: HolderKind,
        root: str | None = None,
        beside: frozenset[HolderKind] = frozenset(),
    ) -> list[HeldStorage]:
        """Return the storages that only some kinds of holders keep.

        Args:
            kinds: Kinds of holders that they may have.
            root: The one allowed root; None for all roots of these kinds.
            beside: Kinds that may hold them as well, since they are released with the others.
        """

        def is_allowed(holder: Holder) -> bool:
            return holder.kind in kinds and root in (None, holder.root)

        return [
            held
            for held in self.held
            if any(map(is_allowed, held.holders))
            and all(is_allowed(holder) or holder.kind in beside for holder in held.holders)
        ]

    # --- the parts of the program

    def fact(self, name: str) -> Any:
        """Return one of the session's facts; None where it was not recorded."""
        return self.session.facts.get(name)

    @property
    def modules(self) -> list[dict[str, Any]]:
        """The tracked modules that lived at the end."""
        return self.fact("modules") or []

    @property
    def optimizers(self) -> list[dict[str, Any]]:
        """The tracked optimizers that lived at the end."""
        return self.fact("optimizers") or []

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The recorded calls of modules, by the way in which they were called."""
        return self.fact("calls") or []

    def model(self) -> dict[str, Any] | None:
        """Return the largest module that was called, or None."""
        return largest_model(self.session)

    def model_name(self) -> str:
        """Return the model's name in the notebook, or else its class."""
        found = self.model()
        return "model" if found is None else str(found["name"])

    def model_code(self) -> str | None:
        """Return the code that names the model, or None if it has no name."""
        return code_name(self.model())

    def optimizer(self) -> dict[str, Any] | None:
        """Return the optimizer with the most parameters, or None."""
        return largest_optimizer(self.session)

    def optimizer_code(self) -> str | None:
        """Return the code that names the optimizer, or None if it has no name."""
        return code_name(self.optimizer())
