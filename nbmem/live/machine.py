"""Reads the host's memory for the sidebar, where torch has no card to use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.api import virtual_card
from nbmem.core.machine import MachineParts
from nbmem.live.known import by_category, parts_of
from nbmem.live.messages import HostSample
from nbmem.probes.cuda import device_count
from nbmem.probes.devices.accelerators import accelerator
from nbmem.probes.devices.host import Host, total_bytes
from nbmem.probes.owners.owner import is_whole

if TYPE_CHECKING:
    from nbmem.record.progress import LoopProgress

ON_THE_ROLL = -1
"""The host's number among the devices, see record/roll.py."""


class HostReader:
    """Reads what this process has resident, and what the machine has left."""

    def __init__(self) -> None:
        self._host = Host()
        self._card: bool | None = None
        self._peak = 0

    def begin(self) -> None:
        """A cell begins: the peak is counted from here."""
        self._peak = 0

    def read(self, progress: LoopProgress | None = None) -> HostSample | None:
        """One reading; None where torch has a card or an accelerator, and before it is imported.

        Nor is there one where the system does not say what a process has resident.

        Args:
            progress: Of the trace that runs: it knows what some of the bytes are.
        """
        torch = sys.modules.get("torch")
        if not is_whole(torch):  # as long as it is being imported it answers with faults
            return None
        if device_count() or virtual_card() is not None or accelerator(torch) is not None:
            return None  # one may have come
        if self._card is None:
            self._card = _is_a_card_here()
        if self._card:
            return None
        told = self._host.read(None, 0, whole=True)
        if told.process is None:
            return None
        total, files = total_bytes(), _at_most(told.files, told.process)
        shared = _at_most(told.shared, told.process - (files or 0))
        self._peak = max(self._peak, told.process)
        return HostSample(
            total=total,
            process=told.process,
            peak=self._peak,
            free=None if told.used is None else total - told.used,
            by_category=by_category(progress, ON_THE_ROLL, told.process) if progress else (),
            parts=parts_of(
                MachineParts(tensors=None, files=files, shared=shared, cache=told.cache)
            ),
        )


def _at_most(part: int | None, whole: int) -> int | None:
    """A part that was read a moment after its whole."""
    return None if part is None else min(part, whole)


def _is_a_card_here() -> bool:
    """Whether this torch could use a card of this machine; asking does not bring it up."""
    version: Any = sys.modules["torch"].version
    if version.cuda is None and getattr(version, "hip", None) is None:
        return False
    from nbmem.devices import cards_here

    return bool(cards_here())
