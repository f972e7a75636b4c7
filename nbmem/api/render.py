"""Render a session; where one format fails, use the next simpler one.

The formats are the explorer, an SVG with tables, text, the ledger's figures and the counters'
figures. A note names each part that was left out, with the reason. A fallback must not fail for the
same reason as its format: views, tips and analyses are called only through `Faults.part`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.errors import UsageError
from nbmem.core.runtime.fault_isolation import Faults, error_of

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.core.session.session import Session
    from nbmem.report.ledger.card_ledger import CardLedger
    from nbmem.report.model import Report, WouldRunOn

logger = logging.getLogger("nbmem")

TEXT = "text/plain"


class PartialReport(NamedTuple):
    """A report, and a sentence for each part that was left out of it."""

    report: Report
    left_out: tuple[str, ...]


def read(
    session: Session, device: int | None, *, everything: bool = False, other_cards: bool = True
) -> PartialReport:
    """Build a session's report with tips; skip and note what fails.

    Args:
        session: What was recorded.
        device: CUDA ordinal of the card; None for the one that held the most.
        everything: Also apply the rules that matter only where memory is short.
        other_cards: Also try the common cards, for a view that shows them.

    Raises:
        UsageError: The session has no such card, or none at all.
        Exception: The ledger cannot be built; `render_mimebundle` then shows the counters.
    """
    faults = Faults()
    card_ledger = _card_ledger(session, device, faults)
    before_tips = _figures(card_ledger, faults)
    report, notes = faults.part(
        "The tips",
        lambda: _with_tips(card_ledger, before_tips, everything=everything),
        (before_tips, ()),
    )
    if other_cards:
        found = faults.part("The other cards", lambda: _would_run_on(card_ledger), None)
        report = replace(report, would_run_on=found)
    missing = (*notes, *faults.notes)
    return PartialReport(replace(report, notes=(*report.notes, *missing)), missing)


def read_figures(session: Session) -> Report:
    """Build the report of the card that held most, without tips.

    A search runs a program many times, and reads the figures of each run alone.

    Raises:
        UsageError: The session has no card.
        Exception: The ledger cannot be built.
    """
    faults = Faults()
    report = _figures(_card_ledger(session, None, faults), faults)
    return replace(report, notes=(*report.notes, *faults.notes))


def save(session: Session, path: str | Path, read_report: Callable[[int | None], Report]) -> Path:
    """Write a session with the explorer data that the viewer page draws.

    There is one part for each card. A page has no Python, so the ledger is built here. A part that
    cannot be built is left out: the session is complete, and nbmem can build the part again.

    Args:
        session: What was recorded.
        path: The file; `.nbmem` is added if it has no suffix.
        read_report: Builds or returns the stored report of a card, by its CUDA ordinal.

    Raises:
        UsageError: The file cannot be written.
    """
    from nbmem.core.files.session import save_session
    from nbmem.core.session.cards import fullest

    faults = Faults()
    drawn: dict[str, bytes] = {}
    main = fullest(session.devices) if session.devices else -1
    for index, trace in enumerate(session.devices):
        # Other calls request the main card by None: its report may be stored already.
        device = None if index == main else trace.info.index
        part = faults.part("The viewer's data", partial(_viewer_json, read_report, device), None)
        drawn |= {} if part is None else {f"explorer/{trace.info.index}.json": part}
    return save_session(session, path, drawn)


def _viewer_json(read_report: Callable[[int | None], Report], device: int | None) -> bytes:
    from nbmem.views.explorer.output import stored

    return stored(read_report(device))


def unmuted(report: Report) -> Report:
    """Return a report without the findings of muted rules."""
    faults = Faults()
    rules = faults.part("The list of muted tips", _muted, frozenset())
    findings = tuple(finding for finding in report.findings if finding.rule not in rules)
    return replace(report, findings=findings, notes=(*report.notes, *faults.notes))


def render_mimebundle(
    session: Session,
    device: int | None,
    read_report: Callable[[], Report],
    cells_of: Callable[[Report], Sequence[CellDelta]],
    *,
    ooms: bool = True,
) -> dict[str, Any]:
    """Return a notebook's output in every form that can be made.

    Args:
        session: What was recorded.
        device: As for `read`.
        read_report: Builds or returns the stored report.
        cells_of: The notebook's history, given the report.
        ooms: Whether the explanation of out-of-memory errors is part of it.

    Raises:
        UsageError: The session has no such card, or none at all.
    """
    try:
        report = read_report()
    except UsageError:
        raise
    except Exception as err:  # noqa: BLE001 - use the counters' figures instead
        return {TEXT: _counter_text(session, device, err)}
    faults = Faults()
    if not ooms:
        fallback = replace(report, ooms=())
        report = faults.part("The place of the error", partial(_without_ooms, report), fallback)
    cells = faults.part("The history of the cells", lambda: cells_of(report), ())
    bundle = faults.part("The views", lambda: _views(report, cells, faults), {})
    return bundle if TEXT in bundle else {**bundle, TEXT: _ledger_text(report, faults)}


def text_of(session: Session, device: int | None, read_report: Callable[[], Report]) -> str:
    """Render a session as text; arguments as for `render_mimebundle`."""
    try:
        report = read_report()
    except UsageError:
        raise
    except Exception as err:  # noqa: BLE001 - as above
        return _counter_text(session, device, err)
    faults = Faults()
    text = faults.part("The text", lambda: _text(report, faults), None)
    return _ledger_text(report, faults) if text is None else _with_notes(text, faults.notes)


def _views(report: Report, cells: Sequence[CellDelta], faults: Faults) -> dict[str, Any]:
    from nbmem.views.mime_bundle import mimebundle

    return mimebundle(report, cells, faults)


def _without_ooms(report: Report) -> Report:
    from nbmem.views.oom import without_ooms

    return without_ooms(report)


def _text(report: Report, faults: Faults) -> str:
    from nbmem.views.text import render_text

    return render_text(report, faults=faults)


def _card_ledger(session: Session, device: int | None, faults: Faults) -> CardLedger:
    from nbmem.report.analysis import card_ledger_of
    from nbmem.report.ledger.card_ledger import CardLedger

    try:
        return card_ledger_of(session, device)
    except UsageError:
        raise
    except Exception as err:  # noqa: BLE001 - the choice may have failed, not the ledger
        card_ledger = CardLedger(session, _card(session, device))
        faults.leave_out("The choice of the card", err)
        return card_ledger


def _card(session: Session, device: int | None) -> int:
    """Return a card's index in the session, else the fullest card's.

    The fullest card is the one that held the most.
    """
    from nbmem.core.session.cards import fullest

    matching = [i for i, trace in enumerate(session.devices) if trace.info.index == device]
    return matching[0] if matching else fullest(session.devices)


def _figures(card_ledger: CardLedger, faults: Faults) -> Report:
    """Build a report without tips, or of the ledger's figures alone."""
    report = faults.part(
        "The report beyond its ledger", lambda: _analysed(card_ledger, faults), None
    )
    return _without_analysis(card_ledger) if report is None else report


def _analysed(card_ledger: CardLedger, faults: Faults) -> Report:
    from nbmem.report.analysis import report_of

    return report_of(card_ledger, faults)


def _with_tips(
    card_ledger: CardLedger, report: Report, *, everything: bool
) -> tuple[Report, tuple[str, ...]]:
    from nbmem.report.analysis.before_return import ledger_before_return
    from nbmem.report.analysis.oom import with_tips
    from nbmem.report.tips.engine import advise
    from nbmem.report.tips.function_advice import names_cause, with_function

    advice = advise(card_ledger.session, card_ledger, report, everything=everything)
    before, then = ledger_before_return(card_ledger), card_ledger.trace.before_return
    facts = {} if before is None else before.session.facts
    if (
        before is not None
        and then is not None
        and not (facts.get("in_loop") and names_cause(advice))
    ):
        known = _figures(before, Faults())
        in_function = advise(before.session, before, known, everything=everything)
        advice = with_function(advice, in_function, then.function, report, facts.get("callers", ()))
        # What the failure keeps is the traceback's, whatever names its variables had.
        pairs = zip(known.ooms, report.ooms, strict=False)
        named = [replace(one, left=at_end.left) for one, at_end in pairs]
        report = replace(report, ooms=(*named, *report.ooms[len(named) :]))  # later ones, too
    return replace(with_tips(report, advice.findings), growth=advice.growth), advice.notes


def _would_run_on(card_ledger: CardLedger) -> WouldRunOn | None:
    from nbmem.api.common_cards import common_cards

    return common_cards(card_ledger)


def _muted() -> frozenset[str]:
    from nbmem.report.tips.mutes import muted

    return muted()


def _without_analysis(card_ledger: CardLedger) -> Report:
    """Build a report of the ledger's figures without any analysis."""
    from nbmem.report.analysis.report_builder import bare_timeline
    from nbmem.report.model import Moment, Peak, Report

    session = card_ledger.session
    top = card_ledger.peak(0, card_ledger.events)
    spans = session.spans
    duration_ns = spans[0].t1_ns - spans[0].t0_ns if spans else 0
    return Report(
        title=session.name,
        device=card_ledger.trace.info,
        duration_ns=duration_ns,
        peak=Peak(
            at=Moment(event=top, t_ns=duration_ns // 2),
            allocated=int(card_ledger.allocated[top]),
            reserved=int(card_ledger.reserved.max()),
            active=int(card_ledger.active.max()),
            requested=int(card_ledger.requested.max()),
            process=card_ledger.peak_process(),
        ),
        ledger_at_start=card_ledger.ledger(0),
        ledger_at_peak=card_ledger.ledger(top),
        ledger_at_end=card_ledger.ledger(card_ledger.events),
        phases=(),
        holdings=(),
        timeline=bare_timeline(card_ledger, top, duration_ns),
        events=card_ledger.events,
        dropped_events=card_ledger.trace.dropped,
        error=session.error,
        notes=session.notes,
    )


def _ledger_text(report: Report, faults: Faults) -> str:
    """Render the ledger's figures where no view could be made."""
    from nbmem.report.ledger.fallback_text import ledger_lines

    head = f"{report.title} on {report.device.name}"
    lines = ledger_lines(report.ledger_at_peak, report.ledger_at_end)
    return _with_notes(_printable(f"{head}\n{lines}"), (*report.notes, *faults.notes))


def _counter_text(session: Session, device: int | None, why: Exception) -> str:
    """Render the counters' figures where the ledger failed."""
    from nbmem.report.ledger.fallback_text import counter_lines

    logger.debug("the ledger could not be made", exc_info=why)
    note = (
        f"The ledger could not be made: {error_of(why)}. Everything that rests on it was left out; "
        "the recording itself is whole. Please report it with the session's file (%nbmem save)."
    )
    try:
        trace = session.devices[_card(session, device)]
        figures = f"{session.name} on {trace.info.name}, as it was read:\n{counter_lines(trace)}"
    except Exception as err:  # noqa: BLE001 - the last form: only a sentence is left
        figures = f"{session.name}: its counters cannot be read, either: {error_of(err)}."
    return _with_notes(_printable(figures), (*session.notes, note))


def _printable(text: str) -> str:
    """Replace control characters, which a terminal would interpret.

    Names in a session are not trusted.
    """
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _with_notes(text: str, notes: Sequence[str]) -> str:
    """Append notes to a text as a list, without wrapping."""
    return "\n\n".join(filter(None, (text, "\n".join(f"- {_printable(note)}" for note in notes))))
