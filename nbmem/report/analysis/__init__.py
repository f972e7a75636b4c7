"""Build reports from a card's ledger: peaks, phases, curves, holdings."""

from nbmem.report.analysis.report_builder import build_report, card_ledger_of, report_of

__all__ = ["build_report", "card_ledger_of", "report_of"]
