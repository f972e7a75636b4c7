"""Format the verdict and the notes of a search for what fits."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import MIB, format_bytes
from nbmem.estimates import world_choice
from nbmem.estimates.questions import predicted_savings
from nbmem.virtual.warnings import COMPILE_LATER, NO_END, is_unplanned

if TYPE_CHECKING:
    from nbmem.allocator.recordings.request_sequence import RefusedRequest
    from nbmem.estimates.programs.programs import Program
    from nbmem.estimates.questions.search.fit_band import Band
    from nbmem.estimates.questions.search.value_search import Search
    from nbmem.report.estimate_results import CardFigures, Probe


def progress_text(probes: Collection[Probe], left: str) -> str:
    """Format the number of runs, the mean time of each, and what is left.

    Args:
        probes: The runs.
        left: The time that is left; empty if it is not known.
    """
    runs = list(probes)
    later = [p.seconds for p in runs[1:]]
    each = f", {sum(later) / len(later):.1f} s each" if later else ""
    return f"{len(runs)} run{'s' * (len(runs) > 1)}{each}; {left or 'the search goes on'}"


def partial_sentences(
    name: str,
    search: Search,
    probes: Collection[Probe],
    card: CardFigures,
    band: Band | None = None,
) -> list[str]:
    """Return the verdict of a search that is still running."""
    if band is not None and band.safe is not None:
        said = band_sentences(name, band, card, search.step)
        return [*said[:1], "That is by replays of the runs so far, and is being checked by runs."]
    ran = [p for p in probes if p.ran and p.value is not None]
    largest = max((p for p in ran if p.fits), key=lambda p: p.value or 0, default=ran[0])
    fits = [p.value or 0 for p in ran if p.fits]
    full = [p.value or 0 for p in ran if not p.fits]
    known = []
    if fits:
        known.append(f"{max(fits):,} fits")
    if full:
        known.append(f"{min(full):,} does not")
    guess = predicted_savings.largest(largest, search.room)
    if guess is not None and search.high is not None:
        guess = min(guess, search.high)
    if fits and full:
        on = with_article(card.name)
        first = f"Between {max(fits):,} and {min(full):,}, the largest {name} fits on {on}."
    elif guess is None:
        first = f"Nothing of the peak grows with {name} by the first run."
    else:
        on = with_article(card.name)
        first = f"About {name} = {guess:,} fits on {on}, by the formula of one run."
    return [first, f"{name}: {', '.join(known)}."]


def final_sentences(  # noqa: PLR0913, PLR0917 - what a verdict is made of
    name: str,
    search: Search,
    probes: Sequence[Probe],
    card: CardFigures,
    program: Program,
    line: Sequence[Probe],
    band: Band,
) -> list[str]:
    """Return the sentences of a finished search."""
    if band.safe == band.best:
        found = [_verdict(name, search, probes, card)]
    else:
        found = band_sentences(name, band, card, search.step)
    found += _checked(band, probes)
    found.append(f"{card.kept} {card.share}".rstrip())
    found += world_choice.rank_sentences(program, probes[0])
    failed = [p for p in probes if p.failure is not None and p.failure.kind == "other"]
    if failed:
        values = ", ".join(str(p.value) for p in failed[:4])
        found.append(
            f"With {name} = {values} the program fails for another reason than memory: "
            f"{failed[0].failure}."
        )
    if search.widened:
        found.append(f"Only multiples of {search.step} were found to run.")
    found += _oddities(name, probes)
    others = sorted({p.phase or "none" for p in probes if p.ran} - {p.phase for p in line})
    if line and others:
        found.append(
            f"The line goes through the {len(line)} runs whose peak is in {line[0].phase}; "
            f"in the others it is in {', '.join(others)}."
        )
    if program.names is not None:
        for note in dict.fromkeys(note for _, note in program.names.notes):
            names = [n for n, said in program.names.notes if said == note]
            found.append(f"{', '.join(names)}: {note}.")
        found += [f"{n} was left out: it is {kind}." for n, kind in program.names.left_out]
    if any(NO_END in p.notes for p in probes):
        found.append(NO_END)
    return found


def band_sentences(name: str, band: Band, card: CardFigures, step: int) -> list[str]:
    """Return what fits always, what by luck, what makes the luck and ends it."""
    on, best = with_article(card.name), band.best or 0
    never = f"from {best + step:,} on it never fits"
    luck = "depends on how the allocator's segments fall"
    if band.safe is None:
        found = [f"No {name} always fits on {on}: up to {best:,} it {luck}, {never}."]
    elif band.safe == best:
        return [f"{name} up to {best:,} always fits on {on}; {never}."]
    else:
        between = f"{band.safe + step:,}" + (f" to {best:,}" if band.safe + step < best else "")
        found = [f"{name} up to {band.safe:,} always fits on {on}; {between} {luck}, {never}."]
    if band.refused is not None and band.safe is not None:
        found.append(_luck(name, band.safe + step, band.refused))
    if band.expandable is not None and band.expandable > (band.safe or 0):
        found.append(f"With expandable_segments:True: up to {band.expandable:,}.")
    return found


def _luck(name: str, value: int, refused: RefusedRequest) -> str:
    """Explain why a value does not fit that is smaller than others that do."""
    pieces = [size for size in refused.pieces if size >= MIB]
    free = format_bytes(refused.card_free + sum(pieces))
    where = f"{format_bytes(refused.card_free)} on the card"
    if pieces:
        many = f"in {len(pieces)} pieces" if len(pieces) > 1 else "in one piece"
        where += f" and the rest {many} between live tensors, of at most {format_bytes(pieces[0])}"
    return (
        f"With {name} = {value:,} a request of {format_bytes(refused.size)} finds {free} free: "
        f"{where}."
    )


def _checked(band: Band, probes: Sequence[Probe]) -> list[str]:
    """Say by how many runs and replays the answer was found."""
    if band.best is None or not band.replayed:
        return []
    runs = (
        f"Checked: {len(probes)} values run, and {band.replayed:,} by replaying the requests of "
        "these runs in the simulated allocator."
    )
    return [runs]


def of_compiled(
    name: str, probes: Sequence[Probe], eager_best: int | None, why: str | None
) -> list[str]:
    """Return notes on compiled functions: planned, or run eagerly.

    They include what would fit in eager mode.

    Args:
        name: The variable's.
        probes: The runs of the answer.
        eager_best: What fits if they run eagerly; None if nothing does, or this was not searched.
        why: Why they could not run planned; None if they could, or this was not tried.
    """
    found = list(dict.fromkeys(note for p in probes for note in p.notes if is_unplanned(note)))
    if why is not None:
        found.append(f"Compiled functions ran eagerly, for planned the program fails: {why}.")
    elif any(COMPILE_LATER in p.notes for p in probes):
        found.append(COMPILE_LATER)
    elif eager_best is not None:
        found.append(
            "Compiled functions are planned as Inductor plans them; where they run eagerly, "
            f"{name} = {eager_best} fits."
        )
    return found


def _verdict(name: str, search: Search, probes: Sequence[Probe], card: CardFigures) -> str:
    fitting = [p.value for p in probes if p.fits and p.value is not None]
    if not fitting:
        least = min((p for p in probes if p.ran), key=lambda p: p.value or 0)
        need = least.wanted - (card.total - card.margin)
        return (
            f"It never fits on {with_article(card.name)}: with {name} = {least.value} it lacks "
            f"{format_bytes(max(need, 0))}."
        )
    best = max(fitting)
    top = next(p for p in probes if p.value == best)
    held = f"{format_bytes(top.process)} of {format_bytes(card.total)}"
    after = next((p for p in probes if p.value == search.limit), None)
    if after is not None and after.failure is not None and after.failure.kind == "other":
        return (
            f"{name} = {best} fits on {with_article(card.name)}: {held}. "
            f"{search.limit:,} fails for another reason than memory."
        )
    if search.flat:
        return _level(name, search, [p for p in probes if p.fits], top, card)
    if search.limit is None:
        return (
            f"It fits on {with_article(card.name)} for every value of {name} up to {best:,}: "
            f"{held}."
        )
    verdict = f"{name} = {best} fits on {with_article(card.name)}: {held}."
    return f"{verdict} {search.limit:,} {_beyond(after, card)}."


def _beyond(after: Probe | None, card: CardFigures) -> str:
    """Say what the smallest value that does not fit does."""
    if after is None:
        return "does not"
    wanted = format_bytes(after.wanted)
    if after.wanted <= card.total:  # "out of memory" would contradict the figures before it
        left = format_bytes(card.total - card.margin)
        return f"would take {wanted}, and the margin leaves {left}"
    line = after.failure.line if after.failure else None
    at = "" if line is None else f" at line {line}"
    return f"runs out of memory{at}; with an endless card it would take {wanted}"


def _level(
    name: str, search: Search, fitting: Sequence[Probe], top: Probe, card: CardFigures
) -> str:
    """Say that a variable changes nothing, or nothing from some value on."""
    values = {p.value or 0: p.allocated for p in fitting}
    least = min(values)
    other = [value for value, allocated in values.items() if allocated != top.allocated]
    if search.flat_from is None and other:
        first = min(value for value in values if value > max(other))
        return (
            f"It fits on {with_article(card.name)} for every {name}: from at most {first:,} on "
            f"nothing changes ({format_bytes(top.process)} of "
            f"{format_bytes(card.total)})."
        )
    if search.flat_from is None or search.flat_from <= least:
        return (
            f"{name} changes nothing: from {least} to {top.value} the program takes the same "
            f"{format_bytes(top.allocated)}. Is the batch made outside of it, with a size of its "
            "own?"
        )
    rows = f"{search.flat_from:,}"
    return (
        f"It fits on {with_article(card.name)} for every {name}: from {rows} on nothing changes "
        f"({format_bytes(top.process)} of {format_bytes(card.total)}): the data has {rows} rows."
    )


def _oddities(name: str, probes: Sequence[Probe]) -> list[str]:
    ran = [p for p in probes if p.ran]
    for smaller, larger in itertools.pairwise(ran):
        if larger.allocated < smaller.allocated:
            text = (
                f"It is not monotone: {larger.value} takes less memory than {smaller.value}, so a "
                f"larger {name} than the answer may fit, too."
            )
            return [text]
    return []
