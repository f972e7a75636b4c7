"""Write the first sentence of every report: one number and a judgement.

Every view takes it from here. The number is what this process held at most, of the whole card. The
figures that follow it in a report are each of one moment, which they name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from nbmem.core.session.categories import Category
from nbmem.core.session.oom import is_oom_text
from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.report.analysis.oom.ranking import ended_by_oom
from nbmem.views import oom, report_sentences
from nbmem.views.markup import one_line, short_path

if TYPE_CHECKING:
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.model import LargestPart, Report

_OTHERS = 0.01
"""Part of the card from which other processes are mentioned."""
_LONGEST = 48
_INTERRUPTED = "KeyboardInterrupt"
_EXCEPTION = re.compile(r"[\w.]+")


def verdict(report: Report) -> str:
    """Return the first sentence of a report.

    After an out-of-memory error it is that error. For instance `Peak 11.80 GiB of 15.00 GiB: fits a
    Tesla T4 with 21% to spare; 79% is activations of model.features.`
    """
    if ended_by_oom(report):
        return f"{oom.title(report.ooms[0])}."
    return peak_sentence(report)


def peak_sentence(report: Report) -> str:
    """Return the sentence on the peak, also where memory ran out."""
    use = _highest_use(report)
    held = format_bytes(use.held)
    most = _most(report, use)
    if not report.card_known:
        none = "no allocation recorded, " if report.events == 0 else ""
        return f"Peak {held} reserved by torch: {none}the card is not in the file{most}."
    held = f"{held} of {report_sentences.whole(report.device)}"
    if report.events == 0:
        return f"No allocation recorded: {use.holder} {held} throughout{most}."
    on = f" on cuda:{report.device.index}, one of {report.cards} cards" * (report.cards > 1)
    judged = "" if _ran_out(report) else f": {_judgement(report, use)}"
    return f"Peak {held}{use.place}{on}{_until(report)}{judged}{most}."


def peak_figures(report: Report) -> str:
    """Return the figures of the peak of allocated bytes, all of one moment."""
    peak, ledger = report.peak, report.ledger_at_peak
    allocated = format_bytes(peak.allocated)
    process = (
        "process unknown" if ledger.process is None else f"{format_bytes(ledger.process)} process"
    )
    parts = (
        [f"{allocated} in tensors", process]
        if report.device.is_host
        else [f"{allocated} allocated", f"{format_bytes(ledger.reserved)} reserved", process]
    )
    if report.events == 0:
        return f"Throughout: {', '.join(parts)}"
    most = "tensors" if report.device.is_host else "allocated"
    beyond = higher(report)
    return f"Most {most}{report_sentences.where(peak.at)}: {', '.join(parts)}" + (
        f"; {beyond}" if beyond else ""
    )


def higher(report: Report) -> str:
    """Return what was higher at another moment than at the peak.

    The peak is that of allocated bytes. Reserved and process bytes are compared with it, and the
    moment is given. Empty if there is nothing.
    """
    peak, ledger = report.peak, report.ledger_at_peak
    found: dict[str, list[str]] = {}
    reserved = ("reserved", peak.reserved, ledger.reserved, peak.reserved_at)
    process = ("process", peak.process, ledger.process, peak.process_at)
    for name, count, then, at in (process,) if report.device.is_host else (reserved, process):
        if count is not None and then is not None and format_bytes(count) != format_bytes(then):
            place = report_sentences.where(at) if at is not None else ""
            found.setdefault(place, []).append(f"{format_bytes(count)} {name}")
    parts = [f"{' and '.join(sizes)}{place}" for place, sizes in found.items()]
    return f"at most {', '.join(parts)}" if parts else ""


class _Use(NamedTuple):
    """The highest use of the card, as the sentence needs it.

    Attributes:
        held: Bytes.
        free: Bytes of the card that were free then.
        holder: What held them, with its verb.
        place: Words that are needed where it is not this process alone.
        at_peak: Bytes of the same kind at the peak of allocated bytes.
    """

    held: int
    free: int
    holder: str
    place: str
    at_peak: int

    @property
    def same(self) -> bool:
        """True if the figure at the peak of allocated bytes looks the same."""
        return format_bytes(self.held) == format_bytes(self.at_peak)


def _highest_use(report: Report) -> _Use:
    peak, ledger = report.peak, report.ledger_at_peak
    highest = report.at_highest or ledger
    if not report.card_known:
        return _Use(peak.reserved, 0, "torch held", "", ledger.reserved)
    free = highest[Category.FREE]
    if ledger.process is None or peak.process is None:
        held = _in_use(highest)
        if held == highest.reserved:  # nothing else was read of the card
            return _Use(held, free, "torch held", " reserved by torch", ledger.reserved)
        return _Use(held, free, "the card's use was", " in use on the card", _in_use(ledger))
    then = peak.process if highest.process is None else highest.process
    free = max(0, free - (peak.process - then))
    return _Use(peak.process, free, "this process held", "", ledger.process)


def _in_use(ledger: Ledger) -> int:
    return ledger.used - ledger[Category.DRIVER]


def _ran_out(report: Report) -> bool:
    return report.ran_out or is_oom_text(report.error or "")


def _until(report: Report) -> str:
    """Return what ended the recording early; empty if nothing did."""
    if _ran_out(report):
        return " until memory ran out"
    if not report.error:
        return ""
    name = _EXCEPTION.match(one_line(report.error))
    if name is None or name[0] == _INTERRUPTED:
        return " until it was interrupted"
    return f" until {name[0]} ended it"


def _judgement(report: Report, use: _Use) -> str:
    device = report.device
    card = "this machine's memory" if device.is_host else with_article(one_line(device.name))
    if device.spilled_bytes:
        return f"more than {card} has, the host's memory held the rest"
    caught = len(report.ooms)
    if caught:
        times = "once" if caught == 1 else f"{caught} times"
        return f"memory ran out {times}, and the program went on"
    spare = report_sentences.percent(use.free, device.own_bytes)
    highest = report.at_highest or report.ledger_at_peak
    others = highest[Category.OTHER_PROCESSES] if highest.process_known else 0
    beside = " beside other processes" if others > _OTHERS * device.own_bytes else ""
    far = " so far" if report.error else ""
    if device.is_host:
        beside = ""
    return f"fits {card}{far} with {spare} to spare{beside}"


def _most(report: Report, use: _Use) -> str:
    """Return what most of it is, as a clause; empty if that is not known."""
    if not report.largest or not use.at_peak:
        return ""
    verb = "is" if use.same else "was"
    then = "" if use.same else "when most was allocated, "
    first, *second = (
        (report_sentences.percent(part.held, use.at_peak), _part(report, part))
        for part in report.largest
    )
    clause = f"; {then}{first[0]} {verb} {first[1]}"
    return clause + "".join(f", {share} {name}" for share, name in second)


def _part(report: Report, part: LargestPart) -> str:
    """Return a category by name, with what holds the most of it."""
    name = report_sentences.label(part.category, report.ledger_at_peak, kind=report.device.kind)
    if part.category is Category.CACHED_RELEASABLE:
        name = "cached by torch"
    if part.category is Category.UNKNOWN:
        name = "memory that nothing names"
    whole = report_sentences.percent(part.owned, part.held) == "100%"
    if part.part is not None:
        return part.part if whole else f"{name}, most of it {part.part}"
    if part.owner is None:
        return name
    owner = f"`{short_path(one_line(part.owner), _LONGEST)}`"
    if whole:
        return f"{name} of {owner}"
    most = "most" if 2 * part.owned > part.held else "the largest part"
    return f"{name}, {most} of it of {owner}"
