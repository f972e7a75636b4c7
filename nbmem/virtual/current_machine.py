"""The active virtual machine; imports neither torch nor a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine


class _Current:
    machine: Machine | None = None


def machine() -> Machine | None:
    """Return the machine whose cards are active; None without one."""
    return _Current.machine


def set_machine(active: Machine | None) -> None:
    """Make the cards of a machine the active ones; None for no cards."""
    _Current.machine = active
