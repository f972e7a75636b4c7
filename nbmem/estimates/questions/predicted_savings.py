"""Predict a remedy's effect from a run's ledger without another run.

A remedy acts on some categories and leaves the others unchanged. So the peak under it is at least
the bytes of those others at the peak of each phase. This lower bound is certain and excludes a
remedy. The share that it takes of the other categories is empirical and only decides the order of
runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.estimates.remedies import BY_KEY

if TYPE_CHECKING:
    from nbmem.estimates.remedies.base import SavingsModel
    from nbmem.estimates.runs.probe_run import Reply
    from nbmem.report.estimate_results import Probe


@dataclass(frozen=True, slots=True)
class PredictedBytes:
    """A prediction of a run under remedies, in bytes.

    Attributes:
        process: Predicted bytes of the process, from experience.
        least: A lower bound of the bytes of the process in any run.
    """

    process: int
    least: int


def predict(base: Reply, keys: Sequence[str]) -> PredictedBytes:
    """Predict the process bytes of the program under remedies."""
    probe = base.probe
    kinds = [BY_KEY[key] for key in keys]
    acts = [kind.acts for kind in kinds]
    context = probe.process - probe.reserved
    whole = probe.wanted - context
    around = whole / max(probe.allocated, 1)
    if any(kind.conf for kind in kinds):
        around = 1.0
    # With another value of the variable, nothing is certain.
    least = 0 if any(kind.parts > 1 for kind in kinds) else _highest(base, acts, most=True)
    usual = _highest(base, acts)
    return PredictedBytes(process=context + int(min(usual * around, whole)), least=context + least)


def _highest(base: Reply, acts: Sequence[SavingsModel], *, most: bool = False) -> int:
    """Return the bytes of the phase that is highest under the remedies."""
    moments = (_left(name, held, acts, most=most) for name, held in base.phases)
    return max(moments, default=base.probe.allocated)


def _left(phase: str, held: Mapping[str, int], acts: Sequence[SavingsModel], *, most: bool) -> int:
    """Return the bytes of a moment that remain under the remedies.

    With `most`, every category that may shrink counts as 0.
    """
    left = 0.0
    for name, count in held.items():
        share = 1.0
        for one in acts:
            taken = one.share(name, phase)
            share *= (0.0 if taken is not None else 1.0) if most else 1.0 - (taken or 0.0)
        left += count * share
    return int(left)


GROWS = frozenset(
    category.label
    for category in (
        Category.INPUTS, Category.ACTIVATIONS, Category.OUTPUT_GRADIENTS, Category.TEMPORARIES,
        Category.UNKNOWN,
    )
)  # fmt: skip
"""What usually grows with a batch."""


def largest(probe: Probe, room: int) -> int | None:
    """Predict the largest value that fits from the ledger of one run.

    Some categories grow with the value; the rest is fixed.

    Args:
        probe: The run.
        room: Bytes that are available to the process.

    Returns:
        The value; None where nothing of the run's peak grows with one.
    """
    context = probe.process - probe.reserved
    if probe.phase == "optimizer":
        grows = sum(probe.held.get(name, 0) for name in GROWS - {Category.TEMPORARIES.label})
    else:
        grows = sum(probe.held.get(name, 0) for name in GROWS)
    if not probe.value or not grows:
        return None
    around = (probe.wanted - context) / max(probe.allocated, 1)
    fixed = probe.allocated - grows
    each = grows * around / probe.value
    return max(int((room - context - fixed * around) / each), 1)
