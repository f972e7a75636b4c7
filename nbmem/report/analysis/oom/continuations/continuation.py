"""Blocks that a program allocates and frees after a failed request.

The recording ends at the failure. How the step goes on is taken from an earlier step, or estimated
from what the failing step has allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.ledger.card_ledger import CardLedger

NEVER = float("inf")
"""Position of a free that does not come."""
LIVE = float("-inf")
"""Position of requests before the failed one."""
ONCE = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.OPTIMIZER_STATE,
    Category.WORKSPACE,
    Category.COMMUNICATION,
)
"""Categories of what one step allocates for all."""
WITH_BATCH = (Category.INPUTS, Category.ACTIVATIONS, Category.OUTPUT_GRADIENTS)
"""Categories that are in proportion to the batch."""
STEP_PHASES = ("input", "forward", "backward", "inference")


class FutureBlock(NamedTuple):
    """One block that lives at or after a failed request.

    Attributes:
        requested_at: Position of its request; 0 for the failed one, LIVE if allocated already.
        freed_at: Position at which it is freed; NEVER if it stays.
        size: Requested bytes.
        stream: CUDA stream.
        row: The recorded allocation that it is or repeats; -1 for none.
        saved: Whether it is an activation, which a backward may need.
        of_batch: Whether its size is in proportion to the batch.
        step: Number of its step; 0 is the failing one.
        kind: Its category, if that is known.
        behind: Whether it lies behind the model's layers: its result, the loss and their gradients.
    """

    requested_at: float
    freed_at: float
    size: int
    stream: int
    row: int
    saved: bool = False
    of_batch: bool = False
    step: int = 0
    kind: Category | None = None
    behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The rest of a failed step, and further steps.

    Attributes:
        blocks: Live blocks and all later ones.
        period: Positions of one step; if estimated, of the rest of the step and one more; if it
            ends with a call, of one of the model's layers.
        steps: How many periods are known.
        since: Positions since the failing step began.
        grown: Live recorded allocations of what grows in each step.
        slope: Bytes by which they grow in a step.
        estimated: Whether no earlier step was recorded.
        loop: Whether a step is an iteration of a loop that calls no module.
        ends: The end of the call that the blocks go up to, as a text for a reader; empty if they
            go on with further steps.
        calls_left: Further calls that transformers' generate() makes at most; None outside of it.
    """

    blocks: tuple[FutureBlock, ...]
    period: int
    steps: int
    since: int = 0
    grown: tuple[int, ...] = ()
    slope: int = 0
    estimated: bool = False
    loop: bool = False
    ends: str = ""
    calls_left: int | None = None

    @property
    def one_more(self) -> float:
        """The position at which the failing step and one more have ended.

        NEVER if the blocks go up to the end of one call.
        """
        if self.ends:
            return NEVER
        return self.period if self.estimated else 2 * self.period

    def end_of(self, step: int) -> int:
        """Return the position at which a step ends; 0 is the failing one."""
        return (step + 1) * self.period - self.since

    def resized(self, share: float) -> Continuation:
        """Return it with a part of the batch; what lives already is unchanged."""
        return self.changed(
            lambda b: (
                b._replace(size=max(1, int(b.size * share)))
                if b.of_batch and b.requested_at != LIVE
                else b
            )
        )

    def changed(self, change: Callable[[FutureBlock], FutureBlock | None]) -> Continuation:
        """Return it with changed blocks; None leaves one out."""
        changed = (change(block) for block in self.blocks)
        return self.changed_to(tuple(block for block in changed if block is not None))

    def changed_to(self, blocks: tuple[FutureBlock, ...]) -> Continuation:
        """Return it with other blocks."""
        return replace(self, blocks=blocks)


def grows_with_batch(card_ledger: CardLedger) -> Mask:
    """Return a mask of the allocations that are in proportion to the batch.

    A temporary that is as large as a weight is a gradient on its way. A variable's tensor counts if
    a training's forward made it: the output.
    """
    category, a = card_ledger.category, card_ledger.allocations
    of_step = card_ledger.phases.named(card_ledger.born_in, *STEP_PHASES)
    weights = a.requested[category == Category.WEIGHTS]
    temporary = (category == Category.TEMPORARIES) & ~np.isin(a.requested, weights)
    output = (category == Category.USER_TENSORS) & card_ledger.phases.named(
        card_ledger.born_in, "forward"
    )
    found: Mask = of_step & (np.isin(category, WITH_BATCH) | temporary | output)
    for index in card_ledger.refused.failed:
        found[cached_rows(card_ledger, index)] = True
        found[_results_so_far(card_ledger, index)] = True
    return found


def _results_so_far(card_ledger: CardLedger, index: int) -> Ints:
    """Return what a call without gradients has made and still holds, by row.

    What keeps it is known only when the call has returned.
    """
    refusal = card_ledger.refused.errors.get(index)
    if refusal is None or refusal.call is None or not refusal.call.blocks:
        return np.zeros(0, np.int64)
    phase = int(card_ledger.phases.of(np.array([index], np.int64))[0])
    if phase < 0 or card_ledger.phases.names[phase] != "inference":
        return np.zeros(0, np.int64)
    live = card_ledger.live(index)
    unknown = np.isin(card_ledger.category[live], (Category.UNKNOWN, Category.USER_TENSORS))
    found: Ints = live[unknown & (card_ledger.born_in[live] == phase)]
    return found


def cached_rows(card_ledger: CardLedger, index: int) -> Ints:
    """Return the allocations of the KV cache of a failed call.

    Args:
        card_ledger: The card's ledger.
        index: Event of the failed request.
    """
    refusal = card_ledger.refused.errors.get(index)
    if refusal is None or refusal.call is None or not refusal.call.cache:
        return np.zeros(0, np.int64)
    live = card_ledger.live(index)
    found: Ints = live[np.isin(card_ledger.allocations.addr[live], refusal.call.cache)]
    return found
