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
        reserved: Bytes held from the driver; None if torch has no allocator that counts them.
        process: Bytes that the driver counts for this process; None if it does not report them.
        frameworks: Bytes that other allocators of this process hold, if they were read; else 0.
    """

    allocated: int
    reserved: int | None
    process: int | None
    frameworks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """The measured result of one freeing action.

    Attributes:
        what: What was released: `the cache`, `checkpoint['model']`.
        measure: The counter that should fall. Released memory goes to torch's cache. The cache,
            like other frameworks' pools, goes back to the driver.
        predicted: Bytes by which it should fall, computed before.
        before: The counters before.
        after: The counters after.
        left: What still holds the released memory, the largest first.
        notes: Further actions, or actions that failed; one sentence each.
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
