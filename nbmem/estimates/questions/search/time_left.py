"""Estimate how long the rest of a search takes, from the runs so far.

Nothing is said before the answer is known to a factor of two. Until then neither the number of runs
is known nor their time: near the answer a value is run twice, without a limit and on the card.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nbmem.estimates.questions.search.fit_band import LOOSE

if TYPE_CHECKING:
    from nbmem.estimates.questions.search.value_search import Search
    from nbmem.report.estimate_results import Probe


class RunCount(NamedTuple):
    """A number of runs: at least and at most."""

    least: int
    most: int

    def plus(self, least: int, most: int | None = None) -> RunCount:
        """Return the count with more runs; `most` is `least` if left out."""
        return RunCount(self.least + least, self.most + (least if most is None else most))

    def after(self, done: int) -> RunCount:
        """Return the count when some of the runs are done."""
        return RunCount(max(self.least - done, 0), max(self.most - done, 0))


AFTER_ROUGH = RunCount(5, 11)
"""Runs after the rough search: measured in 14 searches of 7 programs on a T4 and an A100."""
SURPRISES = 2
"""Runs that most answers take beyond those that are planned when they are foretold."""
NEAR = 2.0
"""Factor between the bounds from which the time is told."""
RECENT = 6
"""Runs whose times are those of the next: the shorter half at least, the longer half at most."""


def of_rough_search(search: Search, probes: Collection[Probe]) -> RunCount | None:
    """Return how many runs are left to narrow the bounds; None if unknown."""
    fits = max((p.value or 0 for p in probes if p.fits), default=0)
    above = [p.value or 0 for p in probes if not p.fits and (p.value or 0) > fits]
    if not fits or not above or min(above) > NEAR * fits:
        return None
    parts = (min(above) - fits) / max(search.step, fits * LOOSE)
    halvings = math.ceil(math.log2(parts)) if parts > 1 else 0
    return AFTER_ROUGH.plus(min(halvings, 1), halvings)


def time_text(left: RunCount | None, ended: Sequence[float]) -> str:
    """Format the seconds that runs will take, as in "about 4 to 9 s left".

    Args:
        left: The runs; None if not known.
        ended: When each run ended, in seconds of one clock. What the search computes between two
            runs is in it.

    Returns:
        The text; empty if nothing is known.
    """
    recent = ended[-RECENT - 1 :]
    times = sorted(after - before for before, after in itertools.pairwise(recent))
    if left is None or not times:
        return ""
    half = (len(times) + 1) // 2
    low = round(left.least * sum(times[:half]) / half)
    high = round(left.most * sum(times[-half:]) / half)
    if high <= 1:
        return "about a second left"
    if low == 0:
        return f"at most about {high} s left"
    return f"about {high} s left" if low == high else f"about {low} to {high} s left"
