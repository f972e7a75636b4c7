"""Write the sentences that text and HTML share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nbmem.core.session.categories import BESIDE, LABELS, MEANINGS, ON_OTHERS, Category
from nbmem.core.session.engines import RULES
from nbmem.core.units import format_bytes, format_ms
from nbmem.views.markup import one_line

if TYPE_CHECKING:
    from nbmem.core.session.frameworks import Share
    from nbmem.core.session.session import DeviceInfo
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.model import Moment, Report

PROCESS_UNKNOWN = (
    "The driver does not say what this process holds (containers, WDDM, no NVML), so everything in "
    "use beyond the reserved bytes is one figure: context, libraries and other processes."
)


_FEW = 2
"""Names that fit into a label."""


def label(category: Category, *ledgers: Ledger, kind: str = "cuda") -> str:
    """Return the name of a category in some ledgers.

    If the process figure is unknown, context includes other processes, and the name says so. One or
    two other frameworks are called by their own names.

    Args:
        category: The category.
        ledgers: The ledgers that it is shown for.
        kind: The device's kind, as torch calls it.
    """
    if (named := ON_OTHERS.get(kind, {}).get(category)) is not None:
        return named[0]
    if category is Category.CONTEXT and not all(ledger.process_known for ledger in ledgers):
        return "context and others"
    names = {share.label for ledger in ledgers for share in ledger.owners if share.held}
    if category in BESIDE and 0 < len(names) <= _FEW:
        return owned(category, " and ".join(sorted(names)))
    return LABELS[category]


def owned(category: Category, name: str) -> str:
    """Return the name of one framework's part of a category."""
    return name if category is Category.FRAMEWORKS else f"{name}, cached"


def meaning(category: Category, *ledgers: Ledger, kind: str = "cuda") -> str:
    """Return what a category holds in some ledgers.

    The arguments are those of `label`.
    """
    if (named := ON_OTHERS.get(kind, {}).get(category)) is not None:
        return named[1]
    if category is Category.CONTEXT and not all(ledger.process_known for ledger in ledgers):
        return PROCESS_UNKNOWN
    if category in BESIDE and (shares := ledgers[0].owners):
        return f"{MEANINGS[category]}; {frameworks(shares)}"
    return MEANINGS[category]


def frameworks(shares: Iterable[Share]) -> str:
    """List frameworks: `CuPy holds 6.1 GiB, of it in use 0.4 GiB`."""
    return "; ".join(
        f"{share.label} holds {format_bytes(share.held)}, "
        + ("of which it does not say what is in use" if share.used is None else "")
        + ("" if share.used is None else f"of it in use {format_bytes(share.used)}")
        for share in shares
        if share.held
    )


def card(device: DeviceInfo) -> str:
    """Return the card's name, with its ordinal and kind if notable.

    It includes whether the card is not the first one, is virtual, or shares the host's memory.
    """
    facts = [f"{device.kind}:{device.index}"] * bool(device.index)
    facts += [virtual(device)] * device.virtual
    facts += ["memory shared with the host"] * device.shared
    return one_line(device.name) + (f" ({', '.join(facts)})" if facts else "")


def virtual(device: DeviceInfo) -> str:
    """Say that a card is virtual, and that its engine is torch if it is."""
    other = device.engine and device.engine != RULES
    return f"virtual, engine {one_line(device.engine)}" if other else "virtual"


def whole(device: DeviceInfo) -> str:
    """Format a card's bytes, and those that the host held for it."""
    own, spilled = format_bytes(device.own_bytes), format_bytes(device.spilled_bytes)
    return f"{own} and {spilled} of the host's" if device.spilled_bytes else own


def percent(part: int, whole: int) -> str:
    """Format a share in percent; one decimal below ten percent."""
    if part <= 0 or whole <= 0:
        return "0%"
    share = 100 * part / whole
    if share < 0.05:
        return "<0.1%"
    return f"{share:.1f}%" if share < 10 else f"{share:.0f}%"


def phase_and_step(phase: str | None, step: int | None) -> str | None:
    """Return `backward, step 2`, or None outside of both."""
    parts = [one_line(phase)] if phase else []
    if step is not None:
        parts.append(f"step {step}")
    return ", ".join(parts) or None


def where(moment: Moment) -> str:
    """Return ` in backward, step 2`; empty outside of a phase and a step."""
    place = phase_and_step(moment.phase, moment.step)
    return f" in {place}" if place else ""


def source(moment: Moment) -> str:
    """Return the line that made the peak: `at train.py:31 in step`.

    Empty if it is not known.
    """
    return f"at {one_line(moment.line)}" if moment.line else ""


def recording(report: Report) -> str:
    """Return what was recorded, on which card and for how long."""
    title = one_line(report.title) or "untitled"
    if report.rank is not None and report.rank.world > 1:
        title = f"{title}, rank {report.rank.number} of {report.rank.world},"
    plural = "" if report.events == 1 else "s"
    if report.device.keeps_history:
        events = f"{report.events:,} allocator event{plural}"
    else:
        events = f"{report.events:,} change{plural} seen"
    return f"{title} on {card(report.device)}, {format_ms(report.duration_ns)}, {events}"


def notes(report: Report) -> list[str]:
    """Return the report's notes, with those that follow from its figures."""
    found = [one_line(note) for note in report.notes]
    if report.dropped_events:
        found.append(
            f"{report.dropped_events:,} older events were lost before the first one shown; "
            "figures from before then come from counters."
        )
    if not report.ledger_at_peak.process_known:
        found.append(PROCESS_UNKNOWN)
    return [*found, *_managed(report.ledger_at_end)]


def _managed(ledger: Ledger) -> Iterator[str]:
    """Yield what is known of managed memory (cudaMallocManaged).

    They may be on the card or in the host's memory. The driver counts a framework's pages for the
    card and for no process: rapidsai/rmm#2259, Syllo/nvtop#213, gpuopenanalytics/pynvml#63.
    """
    managed = ledger.managed
    if managed is None:
        return
    owners = [share for share in ledger.owners if share.managed]
    each = " and ".join(f"{share.label} has {format_bytes(share.managed)}" for share in owners)
    place = label(managed.place, ledger)
    yield (
        f"{each} of managed memory (cudaMallocManaged) at the end, which moves between the card "
        "and the host's memory. nvidia-smi counts what is on the card for the card and for no "
        f"process, so here it stands with {place}: at most {format_bytes(managed.most_on_card)}."
    )
    if managed.least_away:
        yield (
            f"At least {format_bytes(managed.least_away)} of the managed memory cannot be on the "
            "card: the program uses more than there is, and pages come and go while it runs."
        )
