"""Explain an out-of-memory error: the request, its cause, its remedies."""

from nbmem.report.analysis.oom.autopsy import answered_tips, autopsies
from nbmem.report.analysis.oom.caught_errors import passed_over_note
from nbmem.report.analysis.oom.untraced import left_by_traceback, untraced

__all__ = ["answered_tips", "autopsies", "left_by_traceback", "passed_over_note", "untraced"]
