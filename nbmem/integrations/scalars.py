"""Convert a report to a flat dictionary of numbers.

Every experiment tracker accepts this form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.report.model import Report

PEAKS = ("allocated", "reserved", "active", "requested", "process")


def scalars(source: Trace | Report, prefix: str = "nbmem") -> dict[str, int]:
    """Return the figures of one report in bytes, by name.

    An example is `{"nbmem/peak/allocated": 104333312, ...}`.

    `peak/...` are the highest figures, each at its own moment. `at_peak/<category>` is the card
    when allocated bytes peaked; its 20 categories, including those with 0, add up to the card.
    `at_end/allocated` is what was left.

    Args:
        source: A trace that has ended, or its report.
        prefix: Prefix of all names.

    Returns:
        The figures by name. `peak/process` is left out if the driver does not report it.

    Raises:
        NbmemError: The trace still runs, or saw no GPU memory.
    """
    from nbmem.api.tracing import Trace

    report = source.report() if isinstance(source, Trace) else source
    peaks = {f"peak/{name}": getattr(report.peak, name) for name in PEAKS}
    held = {f"at_peak/{category.key}": report.ledger_at_peak[category] for category in Category}
    figures = {**peaks, **held, "at_end/allocated": report.ledger_at_end.allocated}
    return {f"{prefix}/{name}": size for name, size in figures.items() if size is not None}
