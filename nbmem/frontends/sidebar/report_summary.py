"""Convert a report to the sidebar's message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.frontends.sidebar.loop_categories import parts_of
from nbmem.frontends.sidebar.messages import MOST_PHASES, CardInfo, Cell, Entry, LastReport, Phase
from nbmem.report.analysis.oom.ranking import ended_by_oom
from nbmem.report.tips.applicable import can_be_tried
from nbmem.views import oom, report_sentences
from nbmem.views.verdict import verdict

if TYPE_CHECKING:
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.model import Report


def summary(report: Report, cell: Cell | None, t_ms: float) -> LastReport:
    """Return the sidebar's message of a report.

    Args:
        report: The report.
        cell: Its cell, or None.
        t_ms: Milliseconds since the epoch.
    """
    phases = tuple(
        Phase(
            name=row.name,
            step=row.step,
            depth=row.depth,
            duration_ms=(row.t1_ns - row.t0_ns) / 1e6,
            before=row.allocated_before,
            peak=row.peak_allocated,
            after=row.allocated,
        )
        for row in report.phases[:MOST_PHASES]
    )
    device = report.device
    return LastReport(
        t_ms=t_ms,
        cell=cell,
        title=report.title,
        verdict=verdict(report),
        device=CardInfo(
            index=device.index,
            name=device.name,
            total=device.total_bytes,
            virtual=device.virtual,
            shared=device.shared,
        ),
        duration_ms=report.duration_ns / 1e6,
        peak=report.peak,
        at_peak=_entries(report.ledger_at_peak, device.kind),
        at_end=_entries(report.ledger_at_end, device.kind),
        parts_at_peak=parts_of(report.ledger_at_peak.machine),
        phases=phases,
        phases_left_out=len(report.phases) - len(phases),
        findings=report.findings,
        tries=tuple(dict.fromkeys(f.rule for f in report.findings if can_be_tried(f))),
        notes=report.notes,
        error=oom.title(report.ooms[0]) if ended_by_oom(report) else report.error,
    )


def _entries(ledger: Ledger, kind: str) -> tuple[Entry, ...]:
    return tuple((c.key, report_sentences.label(c, ledger, kind=kind), ledger[c]) for c in Category)
