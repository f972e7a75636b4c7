"""From the books to a report: peaks, phases, curves and the largest holdings."""

from nbmem.analysis.build import build_report

__all__ = ["build_report"]
