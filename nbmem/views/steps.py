"""Choose the phases that a table shows, and sum up the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from nbmem.report.model import PhaseRow, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Steps that a table leaves out, or phases of one step.

    Attributes:
        groups: How many steps, or phases.
        first: Number of the first step; None if there are no steps among them.
        last: Number of the last step.
        low: Lowest peak among them.
        high: Highest peak among them.
    """

    groups: int
    first: int | None
    last: int | None
    low: int
    high: int

    @property
    def text(self) -> str:
        """The text that a table writes in the place of the steps."""
        if self.first is None or self.last is None or self.first == self.last:
            return f"{self.groups} more left out"
        return f"steps {self.first} to {self.last} left out ({self.groups} of them)"

    def peaks(self) -> str:
        """Return the range of the peaks that are left out."""
        low, high = format_bytes(self.low), format_bytes(self.high)
        return f"peak {high}" if low == high else f"peaks {low} to {high}"


def peak_row(report: Report) -> PhaseRow | None:
    """Return the innermost phase that contains the recording's peak."""
    at = report.peak.at
    inside = [
        row
        for row in report.phases
        if row.name == at.phase and row.step == at.step and row.t0_ns <= at.t_ns <= row.t1_ns
    ]
    return max(inside, key=lambda row: row.depth, default=None)


_MOST_ROWS = 30
"""Tables of up to this many phases are shown in full."""
_LONG_STEP, _FIRST_SHOWN, _LAST_SHOWN = 20, 8, 4
"""A step with more than 20 phases is shown by its first 8 and its last 4."""


def shorten(report: Report, *, first: int = 3, last: int = 2) -> list[PhaseRow | Gap]:
    """Choose phases to show: a long loop's first, peak and last steps.

    A step may be long itself, with a loop inside. Then its first phases, the phase of the
    recording's peak, and its last phases are shown.
    """
    if len(report.phases) <= _MOST_ROWS:
        return list(report.phases)
    groups = [list(rows) for _, rows in groupby(report.phases, key=lambda row: row.step)]
    wanted = peak_row(report) or max(report.phases, key=lambda row: row.peak_allocated)
    keep = {*range(first), *range(len(groups) - last, len(groups))}
    keep |= {i for i, rows in enumerate(groups) if any(row is wanted for row in rows)}
    found: list[PhaseRow | Gap] = []
    for shown in _with_gaps(groups, keep):
        found += [shown] if isinstance(shown, Gap) else _shorten_step(shown, wanted)
    return found


def _shorten_step(rows: list[PhaseRow], wanted: PhaseRow) -> list[PhaseRow | Gap]:
    """Shorten the phases of one step; a long one loses its middle."""
    if len(rows) <= _LONG_STEP:
        return list(rows)
    keep = {*range(_FIRST_SHOWN), *range(len(rows) - _LAST_SHOWN, len(rows))}
    keep |= {i for i, row in enumerate(rows) if row is wanted}
    shown = _with_gaps([[row] for row in rows], keep)
    return [one if isinstance(one, Gap) else one[0] for one in shown]


def _with_gaps(groups: list[list[PhaseRow]], keep: set[int]) -> Iterator[list[PhaseRow] | Gap]:
    """Yield the groups to keep, and gaps for the others."""
    for kept, run in groupby(enumerate(groups), key=lambda item: item[0] in keep):
        stretch = [rows for _, rows in run]
        # A line "1 more left out" saves no space over the step itself.
        if kept or len(stretch) == 1:
            yield from stretch
            continue
        peaks = [max(row.peak_allocated for row in rows) for rows in stretch]
        numbered = [rows[0].step for rows in stretch if rows[0].step is not None]
        yield Gap(
            groups=len(numbered or stretch),
            first=numbered[0] if numbered else None,
            last=numbered[-1] if numbered else None,
            low=min(peaks),
            high=max(peaks),
        )
