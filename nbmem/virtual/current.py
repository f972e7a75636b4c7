"""Which virtual card is active; importing this imports neither torch nor a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.virtual.device import VirtualGPU


class _Current:
    gpu: VirtualGPU | None = None


def gpu() -> VirtualGPU | None:
    """The active card; None without one."""
    return _Current.gpu


def set_gpu(active: VirtualGPU | None) -> None:
    """Make a card the active one."""
    _Current.gpu = active
