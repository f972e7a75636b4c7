"""Tensors of torch's over memory that is not torch's: shared by dlpack, or by another process.

Their bytes are in no block of the allocator's, so no category of torch's counts them: they are
counted once, with whoever holds them. Where no history is kept, they are those that only the end
shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.holders import held_storages
from nbmem.core.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbmem.core.session.events import Segments
    from nbmem.core.session.frameworks import Share
    from nbmem.core.session.holders import HeldStorage
    from nbmem.report.ledger.card_ledger import Books

LEAST = MIB
"""Bytes below which they are not worth a word."""
MOST_NAMES = 3


def beyond(segments: Segments, storages: Sequence[HeldStorage]) -> list[HeldStorage]:
    """Choose the storages in no segment of torch's; none of them where it keeps no segments."""
    if not len(segments):
        return []
    addrs = np.array([storage.addr for storage in storages], np.int64)
    home = np.searchsorted(segments.addr, addrs, "right") - 1
    inside = (home >= 0) & (addrs < (segments.addr + segments.size)[home])
    return [storages[index] for index in np.flatnonzero(~inside).tolist()]


def borrowed_note(books: Books, owners: Sequence[Share]) -> str | None:
    """Name the tensors that show another's memory at the end, in a sentence; None for none.

    Args:
        books: The card's books.
        owners: The other frameworks at the end.
    """
    trace = books.trace
    found = beyond(trace.end.segments, held_storages(books.session, trace) or ())
    size = sum(storage.size for storage in found)
    if size < LEAST:
        return None
    named = ", ".join(f"{one.name} {one.form}".rstrip() for one in found[:MOST_NAMES])
    more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    if not trace.info.keeps_history:
        return (
            f"{format_bytes(size)} of tensors that live at the end were first met there, and are "
            f"in no category: {named}{more}."
        )
    whose = " or ".join([share.label for share in owners if share.held] + ["another process"])
    return (
        f"{format_bytes(size)} that tensors of torch's show are not torch's own: {named}{more}. "
        f"They were shared without a copy (dlpack, IPC) by {whose}, where they are counted."
    )
