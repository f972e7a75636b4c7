"""Try a failed request, and what follows it, with one thing changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import numpy as np

from nbmem.report.analysis.oom.continuations.continuation import (
    LIVE,
    NEVER,
    Continuation,
    FutureBlock,
)
from nbmem.report.analysis.oom.continuations.estimated_step import estimated_step
from nbmem.report.analysis.oom.continuations.repeated_loop import repeated_loop
from nbmem.report.analysis.oom.continuations.repeated_step import repeated_step
from nbmem.report.analysis.oom.continuations.rest_of_call import rest_of_call
from nbmem.report.analysis.oom.request_replay import FailureReplay, ReplayEnd, replay_from_layout
from nbmem.report.analysis.pipelines import is_first_call

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.categories import Category
    from nbmem.report.analysis.oom.failed_request import FailedRequest
    from nbmem.report.analysis.oom.live_groups import AllocationGroup
    from nbmem.report.model import Finding

LONG = 1_000
"""Further steps after which growth is no reason to look for more memory."""


class TriedChange(NamedTuple):
    """Changes of one remedy at a failed request.

    Attributes:
        freed: Allocations that are not there with it.
        then: What follows the request with it.
    """

    freed: tuple[int, ...]
    then: Continuation


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a trial.

    Attributes:
        kind: The program runs `on`; it runs for some `more` steps, since something grows; or it is
            known of this request `once`.
        steps: For `more`: how many steps end before it runs out again.
        loads: For `on`: whether that is known of loading the model, and of nothing behind it.
        shown: For `on`: whether the first step of the recording has shown it, and not a simulation.
        ends: For `on`: the end of the call up to which it is known, as a text; empty if it is known
            of further steps.
    """

    kind: Literal["on", "more", "once"]
    steps: int = 0
    loads: bool = False
    shown: bool = False
    ends: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """Rank among the other outcomes; the best is the lowest."""
        return ("on", "more", "once").index(self.kind), -self.steps


class Trial:
    """One failed request, and ways to try it again.

    Args:
        case: The figures of the failed request.
        held: The rows live at that moment.
        phase: The phase in which it was made.

    Attributes:
        case: The figures of the failed request.
        held: The rows live at that moment.
        phase: The phase in which it was made.
        then: What follows it; after an error that the program caught, the request alone.
        known: Whether more than the request itself is known.
        freed: Allocations that an earlier change has removed.
        change: What was tried last from the recorded layout; None before that.
    """

    def __init__(
        self, case: FailedRequest, held: Sequence[AllocationGroup], phase: str | None
    ) -> None:
        self.case, self.held, self.phase = case, held, phase
        found = None if case.caught else _continuation(case, phase)
        self.known = found is not None
        alone = FutureBlock(0, NEVER, case.size, case.stream, -1, of_batch=True)
        self.then = found or Continuation(blocks=(alone,), period=1, steps=1, estimated=True)
        self.freed: tuple[int, ...] = ()
        self.change: TriedChange | None = None

    def after(self, change: TriedChange) -> Self:
        """Return the trial of the same request with one change made."""
        changed = copy(self)
        changed.freed, changed.then, changed.change = change.freed, change.then, None
        return changed

    @cached_property
    def rerun(self) -> FailureReplay:
        """A replay of the recording up to the failed request."""
        return FailureReplay(self.case)

    @property
    def noun(self) -> str:
        """Name of what is repeated.

        It is `step` where the program trains, else `call`, or `iteration` of a loop without either.
        """
        if self.then.loop:
            return "iteration"
        names = {*self.case.card_ledger.phases.names.tolist()}
        return "step" if names & {"forward", "backward"} else "call"

    def rows(self, *categories: Category) -> Ints:
        """Return the live allocations of some categories, by allocation time."""
        case = self.case
        rows = case.card_ledger.live(case.index)
        wanted = np.isin(case.card_ledger.category[rows], categories) & ~np.isin(rows, self.freed)
        return rows[wanted]

    def new_rows(self, *categories: Category) -> Ints:
        """Return the live allocations of some categories made in this step."""
        rows = self.rows(*categories)
        return rows[self.case.of_this_step(rows)]

    def bytes_of(self, rows: Ints) -> int:
        """Sum the block bytes of some allocations."""
        return int(self.case.card_ledger.allocations.block[rows].sum())

    def now(
        self,
        *,
        freed: Iterable[int] = (),
        capacity: int | None = None,
        then: Continuation | None = None,
    ) -> Outcome | None:
        """Try it from the recorded layout; None if the request fails again.

        Args:
            freed: Allocations that are freed just before it.
            capacity: Bytes that may be reserved; None for the capacity at that time.
            then: What follows it; None for what follows in the recorded program.
        """
        then = then or self.then
        self.change = TriedChange((*self.freed, *freed), then)
        end = replay_from_layout(self.case, then, freed=self.change.freed, capacity=capacity)
        return self._outcome(then, end)

    def again(
        self,
        *,
        conf: str | None = None,
        resized: Mapping[int, int] | None = None,
        then: Continuation | None = None,
    ) -> Outcome | None:
        """Try it from the start of the recording; None if it fails again.

        None also if the unchanged replay is not as recorded.

        Args:
            conf: Allocator settings that are added to those in force.
            resized: Other bytes for the requests of some events.
            then: What follows it; None for what follows in the recorded program.
        """
        if not self.rerun.faithful:
            return None
        then = then or self.then
        allocated_at = self.case.card_ledger.allocations.allocated_at
        removed = {int(allocated_at[row]): 1 for row in self.freed if allocated_at[row] >= 0}
        resized = {**(resized or {}), **removed}
        return self._outcome(then, self.rerun.replay(then, conf=conf, resized=resized))

    def _outcome(self, then: Continuation, end: ReplayEnd) -> Outcome | None:
        failed_at = end.position
        if failed_at <= 0:
            return None
        if then.ends:
            return Outcome("on", ends=then.ends) if failed_at == NEVER else Outcome("once")
        if not self.known or failed_at < min(then.one_more, then.period * then.steps):
            return (
                Outcome("more", 1) if failed_at >= then.period and then.slope else Outcome("once")
            )
        if not then.slope:
            return Outcome("on")
        if failed_at == NEVER:
            # What is left is in pieces, of which a growing tensor finds only a part useful.
            pieces = 1 if then.calls_left is None else 2
            steps = then.steps + end.left // (pieces * then.slope)
        else:
            steps = int(failed_at // then.period)
        if then.calls_left is not None and steps > then.calls_left:
            return Outcome("on", ends=f"the {then.calls_left:,} tokens that generate() still makes")
        return Outcome("on") if failed_at == NEVER and steps >= LONG else Outcome("more", steps)


def _continuation(case: FailedRequest, phase: str | None) -> Continuation | None:
    """Return what follows a failed request; None if that is not known."""
    layer = None if case.refusal is None else case.refusal.layer
    if is_first_call(case.card_ledger, layer, case.index):
        return rest_of_call(case, phase)
    return (
        repeated_loop(case)
        or repeated_step(case)
        or rest_of_call(case, phase)
        or estimated_step(case, phase)
    )


def explained(found: Finding, outcome: Outcome, trial: Trial) -> Finding:
    """Return a remedy that says how far the program runs with it."""
    if outcome.loads:
        return found
    noun, steps = trial.noun, outcome.steps
    if outcome.kind == "more":
        more = f"buys {steps} more {noun}{'' if steps == 1 else 's'}"
        return replace(
            found,
            title=f"{found.title}: {more}",
            evidence=f"{found.evidence} Something grows with every {noun}, so it then runs out "
            "again.",
        )
    if outcome.kind == "once":
        why = (
            f"The simulator runs out again before the next {noun} ends."
            if trial.known
            else "What the program allocates after it is not known."
        )
        return replace(
            found,
            title=f"{found.title}, for this request only",
            evidence=f"{found.evidence} {why}",
        )
    if outcome.shown:
        return replace(
            found,
            evidence=f"{found.evidence} The first {noun} ran with nothing kept, as each then does.",
        )
    if outcome.ends:
        return replace(found, evidence=f"{found.evidence} Tried through {outcome.ends}: it ends.")
    how = (
        "as estimated from its layers, since no earlier step was recorded"
        if trial.then.estimated
        else f"as an earlier {noun} went"
    )
    return replace(
        found,
        evidence=f"{found.evidence} Tried through the rest of the {noun} and one more, {how}: the "
        "program runs on.",
    )


def kept_elsewhere(then: Continuation, requested: Ints) -> Continuation:
    """Return what follows if each step keeps on the host what grows now.

    It is on the card for one step; a tensor that gets longer is not on it at all.

    Args:
        then: What follows now.
        requested: Bytes of each recorded allocation.
    """
    grown = {*then.grown}

    def change(block: FutureBlock) -> FutureBlock | None:
        if block.row not in grown:
            return block
        if block.requested_at == LIVE or block.size != requested[block.row]:
            return None
        return block._replace(freed_at=min(block.freed_at, block.requested_at + then.period + 0.25))

    return replace(then.changed(change), slope=0)
