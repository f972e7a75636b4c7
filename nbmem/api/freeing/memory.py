"""Measure freed memory by torch's counters, or by what lives.

Cards have counters. For host memory torch has none: the storages that the notebook's names reach
are registered. Storages missing from the registry afterwards were freed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.api.live_tensors import histories, tracking_uncounted
from nbmem.capture.record.cell_deltas import DeltaReader
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.freed_memory import Totals
from nbmem.core.session.events import BlockState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.capture.tensors.storage_registry import StorageRegistry


class CardTotals:
    """Totals of CUDA's cards, by torch's counters."""

    def __init__(self) -> None:
        self._reader = DeltaReader()

    def now(self) -> Totals:
        """Return the totals that are counted at this moment."""
        return self._reader.now()

    def blocks(self) -> dict[tuple[int, int], int]:
        """Return the bytes of each live block, by card and address."""
        found: dict[tuple[int, int], int] = {}
        for index, history in enumerate(histories()):
            blocks = history.layout_at_end.blocks
            blocks = blocks[np.flatnonzero(blocks.state == BlockState.ALLOCATED)]
            found.update(
                ((index, addr), size)
                for addr, size in zip(blocks.addr.tolist(), blocks.size.tolist(), strict=True)
            )
        return found


class HostTotals:
    """Totals of memory whose allocator keeps no history.

    Only storages that were registered count.
    """

    def __init__(self, torch: Any, registry: StorageRegistry) -> None:
        self._torch, self._roll = torch, registry

    def now(self) -> Totals:
        """Return the live bytes of registered storages, and the process's."""
        self._roll.check_all_next()
        self._roll.sweep(0)
        process = self._roll.device.read(self._torch, 0, whole=False).process
        return Totals(sum(self._roll.live_bytes.values()), None, process)

    def blocks(self) -> dict[tuple[int, int], int]:
        """Return the bytes of each live storage, by device and address.

        The device is its index in the identities.
        """
        return self._roll.storages()


@contextmanager
def choose_totals() -> Iterator[CardTotals | HostTotals]:
    """Choose the totals for the memory that torch uses."""
    with tracking_uncounted() as registry:
        yield CardTotals() if registry is None else HostTotals(loaded_torch(), registry)
