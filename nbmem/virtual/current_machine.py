"""Which virtual cards are active; importing this imports neither torch nor a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine


class _Current:
    machine: Machine | None = None


def machine() -> Machine | None:
    """The machine whose cards are active; None without one."""
    return _Current.machine


def set_machine(active: Machine | None) -> None:
    """Make the cards of a machine the active ones."""
    _Current.machine = active
