"""The memory in which something is freed: the cards by torch's counters, else what is seen to live.

Of the host's memory torch counts nothing: what is reached from the notebook's names is put on a
roll (capture/tensors/storage_registry.py), and what is gone from it afterwards was freed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.api.live_tensors import following_uncounted, histories
from nbmem.capture.record.cell_deltas import DeltaReader
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.freed_memory import Totals
from nbmem.core.session.events import BlockState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.capture.tensors.storage_registry import Roll


class OfCards:
    """The memory of CUDA's cards."""

    def __init__(self) -> None:
        self._reader = DeltaReader()

    def now(self) -> Totals:
        """What is counted at this moment."""
        return self._reader.now()

    def blocks(self) -> dict[tuple[int, int], int]:
        """The bytes that each live block takes of its card, by card and address."""
        found: dict[tuple[int, int], int] = {}
        for index, history in enumerate(histories()):
            blocks = history.layout_at_end.blocks
            blocks = blocks[np.flatnonzero(blocks.state == BlockState.ALLOCATED)]
            found.update(
                ((index, addr), size)
                for addr, size in zip(blocks.addr.tolist(), blocks.size.tolist(), strict=True)
            )
        return found


class OfRoll:
    """Memory whose allocator keeps no history, as far as it was looked at."""

    def __init__(self, torch: Any, roll: Roll) -> None:
        self._torch, self._roll = torch, roll

    def now(self) -> Totals:
        """What lives at this moment of all that was looked at, and what the process holds."""
        self._roll.ask_all()
        self._roll.sweep(0)
        process = self._roll.device.read(self._torch, 0, whole=False).process
        return Totals(sum(self._roll.living.values()), None, process)

    def blocks(self) -> dict[tuple[int, int], int]:
        """The bytes of each storage that lives, by its device's place in identities and address."""
        return self._roll.storages()


@contextmanager
def memory() -> Iterator[OfCards | OfRoll]:
    """Choose the memory that torch uses."""
    with following_uncounted() as roll:
        yield OfCards() if roll is None else OfRoll(loaded_torch(), roll)
