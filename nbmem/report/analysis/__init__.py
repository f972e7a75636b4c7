"""From the books to a report: peaks, phases, curves and the largest holdings."""

from nbmem.report.analysis.report_builder import books_of, build_report, report_of

__all__ = ["books_of", "build_report", "report_of"]
