"""The sentences that text and HTML share, so that both say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.categories import LABELS, MEANINGS, Category
from nbmem.core.units import format_bytes, format_ms
from nbmem.views.markup import one_line

if TYPE_CHECKING:
    from nbmem.core.session import DeviceInfo
    from nbmem.report import Moment, Report

PROCESS_UNKNOWN = (
    "The driver does not say what this process holds (containers, or no NVML), so everything in "
    "use beyond the reserved bytes is one figure: context, libraries and other processes."
)


def label(category: Category, *, process_known: bool) -> str:
    """Name of a category, honest about what context holds where nobody can split it."""
    if category is Category.CONTEXT and not process_known:
        return "context and others"
    return LABELS[category]


def meaning(category: Category, *, process_known: bool) -> str:
    """What a category holds."""
    if category is Category.CONTEXT and not process_known:
        return PROCESS_UNKNOWN
    return MEANINGS[category]


def card(device: DeviceInfo) -> str:
    """The card's name, saying so if it is not the first one, or not there."""
    facts = [f"cuda:{device.index}"] * bool(device.index) + ["virtual"] * device.virtual
    return one_line(device.name) + (f" ({', '.join(facts)})" if facts else "")


def percent(part: int, whole: int) -> str:
    """A share: one decimal below ten percent."""
    if part <= 0 or whole <= 0:
        return "0%"
    share = 100 * part / whole
    if share < 0.05:
        return "<0.1%"
    return f"{share:.1f}%" if share < 10 else f"{share:.0f}%"


def phase_and_step(phase: str | None, step: int | None) -> str | None:
    """`backward, step 2`, or None outside of both."""
    parts = [one_line(phase)] if phase else []
    if step is not None:
        parts.append(f"step {step}")
    return ", ".join(parts) or None


def where(moment: Moment) -> str:
    """` in backward, step 2`, or nothing outside of a phase and a step."""
    place = phase_and_step(moment.phase, moment.step)
    return f" in {place}" if place else ""


def source(moment: Moment) -> str:
    """`at train.py:31 in step`: the line whose allocation made the peak, if it is known."""
    return f"at {one_line(moment.line)}" if moment.line else ""


def verdict(report: Report) -> str:
    """The one sentence that a person needs; `source` adds the line."""
    peak, ledger = report.peak, report.ledger_at_peak
    process = (
        "process unknown," if ledger.process is None else f"{format_bytes(ledger.process)} process"
    )
    figures = (
        f"{format_bytes(peak.allocated)} allocated, {format_bytes(ledger.reserved)} reserved, "
        f"{process} of {format_bytes(report.device.total_bytes)}"
    )
    if report.events == 0:
        return f"No allocation recorded: {figures}, throughout"
    beyond = higher(report)
    return f"Peak {figures}{where(peak.at)}" + (f"; {beyond}" if beyond else "")


def higher(report: Report) -> str:
    """What was higher at another moment than at the peak of allocated, and where; else empty."""
    peak, ledger = report.peak, report.ledger_at_peak
    found: dict[str, list[str]] = {}
    for name, count, then, at in (
        ("reserved", peak.reserved, ledger.reserved, peak.reserved_at),
        ("process", peak.process, ledger.process, peak.process_at),
    ):
        if count is not None and then is not None and format_bytes(count) != format_bytes(then):
            place = where(at) if at is not None else ""
            found.setdefault(place, []).append(f"{format_bytes(count)} {name}")
    parts = [f"{' and '.join(figures)}{place}" for place, figures in found.items()]
    return f"at most {', '.join(parts)}" if parts else ""


def recording(report: Report) -> str:
    """What was recorded, where and for how long."""
    title = one_line(report.title) or "untitled"
    if report.rank is not None and report.rank.world > 1:
        title = f"{title}, rank {report.rank.number} of {report.rank.world},"
    events = f"{report.events:,} allocator event{'' if report.events == 1 else 's'}"
    return f"{title} on {card(report.device)}, {format_ms(report.duration_ns)}, {events}"


def notes(report: Report) -> list[str]:
    """The report's notes, with those that follow from its figures."""
    found = [one_line(note) for note in report.notes]
    if report.dropped_events:
        found.append(
            f"{report.dropped_events:,} older events were lost before the first one shown; "
            "figures from before then come from counters."
        )
    if not report.ledger_at_peak.process_known:
        found.append(PROCESS_UNKNOWN)
    return found
