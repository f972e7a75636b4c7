"""Write on which common cards a recording would run: a line, or chips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.views import report_sentences, style
from nbmem.views.markup import Markup, element

if TYPE_CHECKING:
    from nbmem.report.model import CardFit, Report, WouldRunOn

UNKNOWN_KERNELS = (
    "By the recorded requests, replayed on each size. Another card's kernels may take other work "
    "areas."
)
_AMPLE = 0.5
"""Part of a card to spare from which larger cards need no figure."""
_MANY = 3
"""Cards with ample room that are counted instead of named, at least."""


def would_run_line(report: Report) -> str:
    """Return the cards as one line; empty if there is nothing to say."""
    found = report.would_run_on
    if found is None:
        return ""
    if not found.cards:
        return " ".join(found.limits)
    fits = [one for one in found.cards if one.fits]
    short = [one for one in reversed(found.cards) if one.fits is False]
    undecided = [one for one in found.cards if one.fits is None]
    parts = [_listed(fits)] if fits else []
    if undecided and found.request_only:
        parts.append(", ".join(one.card for one in undecided))
    if short:
        named = ", ".join(f"{one.card}{_bracket(_shortage(one))}" for one in short)
        parts.append(f"not on {named}")
    if undecided and not found.request_only:
        names = ", ".join(one.card for one in undecided)
        parts.append(f"not decided for {names}: {undecided[0].how}")
    sentences = [f"{_title(found)}: {'; '.join(parts)}.", *_ends(found), *found.limits]
    return " ".join(sentences)


def would_run_html(report: Report) -> list[Markup]:
    """Return the cards as chips that open; empty without any."""
    found = report.would_run_on
    if found is None:
        return []
    if not found.cards:
        return [element("div", " ".join(found.limits), style=style.ABOUT)]
    return [
        element("div", _title(found), style=style.CHIPS_TITLE),
        element("div", *(_chip(one) for one in found.cards), style=style.CHIPS),
        element("div", " ".join(limits_of(found)), style=style.CHIPS_NOTE),
    ]


def verdict_on(one: CardFit) -> str:
    """Return a card's answer in a few words: `38% to spare`."""
    if one.fits is None:
        return "not decided"
    if not one.fits:
        return _shortage(one) or "does not fit"
    spare = _spare(one)
    if not one.margin:
        return f"only just{_comma(spare)}"
    return spare or "fits"


def limits_of(found: WouldRunOn) -> list[str]:
    """Return what the answers cannot know, one sentence each."""
    return [*_ends(found), *found.limits, *[UNKNOWN_KERNELS] * bool(found.cards)]


def _title(found: WouldRunOn) -> str:
    return "Would get past this request on" if found.request_only else "Would run on"


def _listed(fits: list[CardFit]) -> str:
    """List the cards that fit; many of them with ample room are counted."""
    named: list[str] = []
    for at, one in enumerate(fits, 1):
        just = "only just" if not one.margin else ""
        known = ", ".join(filter(None, (just, _spare(one))))
        named.append(f"{one.card}{_bracket(known)}")
        ample = one.spare is not None and one.spare >= _AMPLE * one.total
        if ample and len(fits) - at >= _MANY:
            larger = f"and all {len(fits) - at} larger ones up to {fits[-1].card}"
            return f"{', '.join(named)} {larger}"
    return ", ".join(named)


def _ends(found: WouldRunOn) -> tuple[str, ...]:
    return ("What follows that request is not known.",) if found.request_only else ()


def _spare(one: CardFit) -> str:
    if one.releases:
        return "releasing its cache"
    if one.spare is None:
        return ""
    return f"{report_sentences.percent(one.spare, one.total)} to spare"


def _shortage(one: CardFit) -> str:
    return "" if one.short is None else f"{format_bytes(one.short)} short"


def _bracket(text: str) -> str:
    return f" ({text})" if text else ""


def _comma(text: str) -> str:
    return f", {text}" if text else ""


def _chip(one: CardFit) -> Markup:
    kind = style.CHIP_NO if one.fits is False else style.CHIP_FITS
    if one.fits is None or (one.fits and not one.margin):
        kind = style.CHIP_TIGHT
    return element(
        "details",
        element(
            "summary",
            element("b", one.card),
            element("div", verdict_on(one), style=style.CHIP_ANSWER),
            style=style.CHIP_SUMMARY,
        ),
        element("div", detail_of(one), style=style.CHIP_DETAIL),
        style=kind,
    )


def detail_of(one: CardFit) -> str:
    """Return how a card's answer is known, with its figures."""
    sure = "exact" if one.exact else "estimate"
    figure = ""
    if one.spare is not None:
        figure = f", {format_bytes(one.spare)} stay free"
    elif one.short is not None:
        figure = f", {format_bytes(one.short)} more would suffice"
    return f"{format_bytes(one.total)}{figure}: {one.how} ({sure})."
