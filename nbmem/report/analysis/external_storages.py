"""External storages: tensors over memory that torch does not own.

The memory is shared by dlpack, or by another process.

These bytes are in no block of the allocator, so no category of torch's counts them. They are
counted once, with the framework or process that holds them. Without allocator history, these are
the storages that are known only at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.units import MIB, format_bytes

if TYPE_CHECKING:
    from nbmem.core.session.events import Segments
    from nbmem.core.session.frameworks import Share
    from nbmem.core.session.holders import HeldStorage
    from nbmem.report.ledger.card_ledger import CardLedger

MIN_BYTES = MIB
"""Smaller amounts are not mentioned."""
MAX_NAMES = 3


def external_storages(segments: Segments, storages: Sequence[HeldStorage]) -> list[HeldStorage]:
    """Return the storages outside all of torch's segments.

    The list is empty if torch has no segments.
    """
    if not len(segments):
        return []
    addrs = np.array([storage.addr for storage in storages], np.int64)
    home = np.searchsorted(segments.addr, addrs, "right") - 1
    inside = (home >= 0) & (addrs < (segments.addr + segments.size)[home])
    return [storages[index] for index in np.flatnonzero(~inside).tolist()]


def external_storages_note(card_ledger: CardLedger, owners: Sequence[Share]) -> str | None:
    """Return a note on tensors over external memory at the end, or None.

    None below `MIN_BYTES` bytes. Without allocator history the note is about tensors that were
    first seen at the end.

    Args:
        card_ledger: The card's ledger.
        owners: The other frameworks at the end.
    """
    trace = card_ledger.trace
    found = external_storages(trace.end.segments, card_ledger.storages)
    size = sum(storage.size for storage in found)
    if size < MIN_BYTES:
        return None
    named = ", ".join(f"{one.name} {one.form}".rstrip() for one in found[:MAX_NAMES])
    more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
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
