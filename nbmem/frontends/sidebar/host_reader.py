"""Sample the host's memory for the sidebar where torch has no card."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.api.tracing import virtual_card
from nbmem.capture.devices.accelerators import accelerator_in_use
from nbmem.capture.devices.host import Host, total_bytes
from nbmem.capture.frameworks.framework import is_whole
from nbmem.capture.torch_cuda import device_count
from nbmem.core.session.host_memory import MachineParts
from nbmem.frontends.sidebar.loop_categories import by_category, parts_of
from nbmem.frontends.sidebar.messages import HostSample

if TYPE_CHECKING:
    from nbmem.capture.record.progress import LoopProgress

HOST_DEVICE = -1
"""The host's device number, see capture/record/storage_registry_log.py."""


class HostReader:
    """A reader of this process's resident and the host's available bytes."""

    def __init__(self) -> None:
        self._host = Host()
        self._card: bool | None = None
        self._peak = 0

    def begin(self) -> None:
        """Restart the peak at the beginning of a cell."""
        self._peak = 0

    def read(self, progress: LoopProgress | None = None) -> HostSample | None:
        """Sample the host's memory; None where torch has a card.

        Also None before torch is imported, and if the system does not report resident bytes.

        Args:
            progress: Progress of the running trace, which knows the category of some bytes.
        """
        torch = sys.modules.get("torch")
        if not is_whole(torch):  # during its import, calls would fail
            return None
        if device_count() or virtual_card() is not None or accelerator_in_use(torch) is not None:
            return None  # a card may have appeared
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
            by_category=by_category(progress, HOST_DEVICE, told.process) if progress else (),
            parts=parts_of(
                MachineParts(tensors=None, files=files, shared=shared, cache=told.cache)
            ),
        )


def _at_most(part: int | None, whole: int) -> int | None:
    """Limit a part, which was read a moment after its whole."""
    return None if part is None else min(part, whole)


def _is_a_card_here() -> bool:
    """Return whether torch could use a card here, without starting CUDA."""
    version: Any = sys.modules["torch"].version
    if version.cuda is None and getattr(version, "hip", None) is None:
        return False
    from nbmem.api.device_selection import cards_here

    return bool(cards_here())
