"""Explain an out-of-memory error: the request, its cause, its remedies."""

from nbmem.report.analysis.oom.autopsy import autopsies, passed_over_note
from nbmem.report.analysis.oom.ranking import ended_by_oom, with_tips, without_remedies
from nbmem.report.analysis.oom.untraced import left_by_traceback, untraced

__all__ = [
    "autopsies",
    "ended_by_oom",
    "left_by_traceback",
    "passed_over_note",
    "untraced",
    "with_tips",
    "without_remedies",
]
