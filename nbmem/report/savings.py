"""Savings of findings: bytes, and how they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from nbmem.report.model import Ground


class Saving(TypedDict):
    """The part of a `Finding` that says what it saves."""

    low: int
    high: int
    ground: Ground


def exact(low: int, high: int | None = None) -> Saving:
    """Return a saving that was counted; `high` is `low` by default."""
    return Saving(low=low, high=low if high is None else high, ground="exact")


def simulated(low: int, high: int | None = None) -> Saving:
    """Return a saving by the recorded events; `high` is `low` by default."""
    return Saving(low=low, high=low if high is None else high, ground="simulated")


def estimated(low: int, high: int | None = None) -> Saving:
    """Return an estimated saving; `high` is `low` by default."""
    return Saving(low=low, high=low if high is None else high, ground="estimated")
