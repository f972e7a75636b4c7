"""Select a plan's cheapest remedy that suffices; format the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.estimates.remedies import BY_KEY, REMEDIES, oversubscribes
from nbmem.virtual.warnings import COMPILE_LATER, is_unplanned

if TYPE_CHECKING:
    from nbmem.report.estimate_results import CardFigures, Option, Probe

AS_IT_IS = "as it is"
_ORDER = [kind.key for kind in REMEDIES]


def keys(option: Option) -> tuple[str, ...]:
    """Return the keys of an option's remedies."""
    return () if option.key == AS_IT_IS else tuple(option.key.split("+"))


def price(option: Option) -> tuple[int, int]:
    """Return an option's sort key: singles before pairs, by dearest part.

    Paging is the last.
    """
    found = keys(option)
    count = len(found) + len(_ORDER) * oversubscribes(found)  # whatever else suffices comes before
    return count, max((_ORDER.index(key) for key in found), default=-1)


def process(option: Option) -> int:
    """Return the process bytes of an option, as run or as predicted."""
    return option.probe.need if option.probe is not None else option.foreseen or 0


def gain(option: Option) -> int:
    """Return the bytes that an option saves, allocated or reserved.

    The larger of both counts: live bytes, or those that the allocator has reserved.
    """
    return max(option.saved, option.saved_reserved)


def cheapest(ran: Sequence[Option]) -> Option | None:
    """Return the cheapest option that makes the program fit, or None."""
    fitting = [o for o in ran if o.probe is not None and o.probe.fits]
    return min(fitting, key=price, default=None)


def without_needless(ran: Sequence[Option]) -> tuple[list[Option], list[Option]]:
    """Separate options whose milder form helps as much.

    Returns the others first, then these without their runs.
    """
    rows, needless = [], []
    for option in ran:
        milder = BY_KEY[option.key].milder if option.key in BY_KEY else ""
        by = next((o for o in ran if o.key == milder and gain(o) > 0), None)
        if by is None or process(by) > process(option):
            rows.append(option)
            continue
        why_not = f"It needs no less than {by.title}, which costs less."
        needless.append(
            dataclasses.replace(
                option, probe=None, code="", diff="", foreseen=None, why_not=why_not
            )
        )
    return rows, needless


def sentences(  # noqa: PLR0913 - what a verdict is made of
    first: Option,
    ran: Sequence[Option],
    rest: Sequence[Option],
    card: CardFigures,
    room: int,
    *,
    done: bool,
) -> list[str]:
    """Return the verdict, or as much of it as is known.

    Args:
        first: The program as it is.
        ran: Remedies that were run.
        rest: Those that were not.
        card: On which card.
        room: Bytes that the process may have.
        done: Whether no run follows.
    """
    base = first.probe
    assert base is not None  # noqa: S101 - it ran
    limit = f"{format_bytes(room)} on {with_article(card.name)}"
    foreseen = [option for option in rest if option.foreseen is not None]
    if base.fits:
        found = [f"It fits as it is: {format_bytes(base.need)} of {limit}."]
        if not ran and foreseen:
            found.append(
                "So no remedy was run; what each would leave is foreseen from this run's ledger. "
                "`--all` runs them."
            )
        return [*found, *_of_card(card, room)]
    wanted = format_bytes(base.wanted)
    found = [f"It does not fit as it is: it would take {wanted}, and there are {limit}."]
    best = cheapest(ran)
    if best is not None and best.cheapest:
        assert best.probe is not None  # noqa: S101 - it fits
        found.append(
            f"The cheapest that makes it fit: {best.title} ({format_bytes(best.probe.need)})."
        )
    elif best is not None:
        assert best.probe is not None  # noqa: S101 - it fits
        found.append(
            f"{best.title} makes it fit ({format_bytes(best.probe.need)}); cheaper ones are still "
            "to be run."
        )
    elif ran and done:
        found.append(_none(ran))
    if foreseen and done:
        found.append(
            "What was not run cannot change this; what it would leave is foreseen from the ledger "
            "of the program as it is. `--all` runs it."
        )
    elif foreseen:
        found.append("What is not run yet is foreseen from the ledger of the program as it is.")
    return [*found, *_of_card(card, room)]


def of_compiled(base: Probe, eager: Probe | None, why: str) -> list[str]:
    """Return notes on a program's compiled functions.

    Args:
        base: The run without remedies.
        eager: The one in which they ran eagerly, if they were planned in the other.
        why: Why they could not be planned; empty if this was not tried, or went well.
    """
    found = [note for note in base.notes if is_unplanned(note)]
    if why:
        found.append(f"Compiled functions ran eagerly, for planned the program fails: {why}.")
    elif COMPILE_LATER in base.notes:
        found.append(COMPILE_LATER)
    elif eager is not None:
        found.append(
            "What it compiles is planned as Inductor plans it; run eagerly, it would take "
            f"{format_bytes(eager.need)} (live at the peak: {format_bytes(eager.allocated)}, "
            f"compiled {format_bytes(base.allocated)})."
        )
    return found


def _of_card(card: CardFigures, room: int) -> list[str]:
    """Explain the bytes that are available.

    Where a target was given, the margin has no part.
    """
    kept = card.kept if room == card.total - card.margin else ""
    told = f"{kept} {card.share}".strip()
    return [told] if told else []


def _none(ran: Sequence[Option]) -> str:
    best = max(ran, key=gain)
    furthest = ""
    if best.probe is not None and gain(best) > 0:
        furthest = (
            f" The furthest is {best.title}, which would take {format_bytes(best.probe.wanted)}."
        )
    return f"None of the remedies and pairs makes it fit.{furthest}"
