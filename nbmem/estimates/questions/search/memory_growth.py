"""Fit "model + batch x sample" to real runs by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.report.estimate_results import Part, Probe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


CURVED = 0.01
"""A line that misses a point by more than this part of the largest peak gets a square term."""
FEWEST = 3
NEAR = 4
"""A run counts as near if its value is at least this part of the answer."""


def same_peak(probes: Sequence[Probe], best: int | None) -> list[Probe]:
    """Select the runs near `best` whose peak is in the same phase.

    One line can be fitted to these. Far below `best`, another moment is the highest, even in the
    same phase.
    """
    whole = sorted((p for p in probes if p.ran and p.value is not None), key=lambda p: p.value or 0)
    if not whole:
        return []
    top = next((p for p in whole if p.value == best), whole[-1])
    line = [p for p in whole if p.phase == top.phase]
    near = [p for p in line if (p.value or 0) * NEAR >= (top.value or 0)]
    return near if len(near) >= FEWEST else line


def total(probes: Sequence[Probe]) -> Part | None:
    """Fit a line to the allocated peaks; None with fewer than three runs."""
    if len(probes) < FEWEST:
        return None
    return _line("allocated", probes, [p.allocated for p in probes])


def by_category(probes: Sequence[Probe]) -> tuple[Part, ...]:
    """Fit a line to each category that has bytes in any run.

    The category that is largest in the run of the largest value comes first.
    """
    if len(probes) < FEWEST:
        return ()
    names = {name for p in probes for name, count in p.held.items() if count}
    last = max(probes, key=lambda p: p.value or 0)
    return tuple(
        _line(name, probes, [p.held.get(name, 0) for p in probes])
        for name in sorted(names, key=lambda name: -last.held.get(name, 0))
    )


def _line(name: str, probes: Sequence[Probe], counts: Sequence[int]) -> Part:
    import numpy as np

    x = np.array([p.value for p in probes], float)
    y = np.array(counts, float)
    part = _least_squares(name, x, y, 1)
    if part.residual > CURVED * max(p.allocated for p in probes) and len(x) > FEWEST:
        curved = _least_squares(name, x, y, 2)
        if curved.residual < part.residual / 2:
            return curved
    return part


def _least_squares(name: str, x: NDArray[np.float64], y: NDArray[np.float64], degree: int) -> Part:
    import numpy as np

    scale = max(float(x.max()), 1.0)  # powers of a large value would lose digits
    powers = np.vander(x / scale, degree + 1, increasing=True)
    factors, *_ = np.linalg.lstsq(powers, y, rcond=None)
    fixed, each, square = (*map(float, factors), 0.0)[:3]
    return Part(
        name=name,
        fixed=fixed,
        each=each / scale,
        square=square / scale**2,
        residual=float(np.abs(powers @ factors - y).max()),
    )
