"""Measured effect of an action that frees memory, beside its prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nbmem.core.session.holders import Root


@dataclass(frozen=True, slots=True)
class Totals:
    """Memory counters summed over all cards that torch uses.

    Attributes:
        allocated: Bytes in live blocks.
        reserved: Bytes held from the driver; None where torch has no allocator that counts them.
        process: What the driver counts for this process; None where it does not say.
        frameworks: What other allocators of this process hold, where that was read; else 0.
    """

    allocated: int
    reserved: int | None
    process: int | None
    frameworks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """The measured result of one freeing action.

    Attributes:
        what: What was let go of: `the cache`, `checkpoint['model']`.
        measure: The counter that was to fall: memory that is let go of goes into torch's cache, and
            the cache goes back to the driver, as other frameworks' pools do.
        predicted: Bytes by which it was to fall, worked out before.
        before: The counters before.
        after: The counters after.
        left: What still holds what was let go of, the largest first.
        notes: What was done beyond that, or could not be; one sentence each.
    """

    what: str
    measure: Literal["allocated", "reserved", "frameworks"]
    predicted: int
    before: Totals
    after: Totals
    left: tuple[Root, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> int:
        """Bytes by which the counter fell."""
        before: int | None = getattr(self.before, self.measure)
        after: int | None = getattr(self.after, self.measure)
        return (before or 0) - (after or 0)
