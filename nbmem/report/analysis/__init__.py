"""Build reports from a card's ledger: peaks, phases, curves, holdings."""

from nbmem.report.analysis.report_builder import books_of, build_report, report_of

__all__ = ["books_of", "build_report", "report_of"]
