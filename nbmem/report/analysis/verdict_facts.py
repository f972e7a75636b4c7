"""Gather the facts of a report's first sentence: use, largest categories."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import LIVE, PROCESS, RESERVED, Category
from nbmem.core.session.oom import is_oom_text
from nbmem.core.session.tensor_names import (
    is_graph_name,
    module_in_name,
    module_of_parameter,
    without_shape,
)
from nbmem.core.session.tensor_parts import KV_CACHE, LOGITS
from nbmem.report.ledger.allocation_facts import NO_NAME
from nbmem.report.model import LargestPart, Report

if TYPE_CHECKING:
    from nbmem.core.runtime.fault_isolation import Faults
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.ledger.card_ledger import CardLedger

CACHED = (Category.CACHED_RELEASABLE, Category.CACHED_STUCK)
_MAX_NAMES = 1_000
"""Names whose bytes are added up, the largest; a path holds at least the share that is said."""
_MAX_UNNAMED = 500
"""Unnamed allocations whose place is looked up, the largest; more would take time."""
_TELLING = (KV_CACHE, LOGITS)
"""Parts that say what most of a category is, whatever modules and variables hold."""
_OF_PARAMETERS = (Category.WEIGHTS, Category.BUFFERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
_WORDS = re.compile(
    r"(?:input|local|the graph of|a key of|autocast's copy of|the lru_cache of"
    r"|(?:temporary|made) (?:of|by|near|before|after)) "
)
_PATH = re.compile(r"[^\W\d]\w*(?:\.\w+|\[[^\]]*\])*(?:\(\))?")
_STEP = re.compile(r"\.\w+|\[[^\]]*\]|[^.\[\]]+")


def with_verdict_facts(report: Report, card_ledger: CardLedger, faults: Faults) -> Report:
    """Return the report with the facts that its first sentence needs."""
    session, trace, part = card_ledger.session, card_ledger.trace, faults.part
    top, at_peak = card_ledger.peak(0, card_ledger.events), report.ledger_at_peak
    return replace(
        report,
        at_highest=part("The card at the largest process", lambda: _at_highest(card_ledger), None),
        largest=part("The largest part", lambda: largest_parts(card_ledger, top, at_peak), ()),
        cards=len(session.devices),
        card_known=bool(len(trace.samples))
        or trace.info.total_bytes > int(card_ledger.reserved.max()),
        ran_out=is_oom_text(session.error or ""),
    )


def _at_highest(card_ledger: CardLedger) -> Ledger:
    """Return the card when this process, or else torch, held the most."""
    position = card_ledger.largest_process()
    if position is None:
        position = int(card_ledger.reserved.argmax())
    return card_ledger.ledger(position)


def largest_parts(
    card_ledger: CardLedger, position: int, ledger: Ledger
) -> tuple[LargestPart, ...]:
    """Return the largest category at a position, with its largest owner.

    If torch does not hold it, the largest of what torch holds follows.

    Args:
        card_ledger: The card's ledger.
        position: The moment.
        ledger: The card at that moment.
    """
    held = {category: ledger[category] for category in PROCESS}
    held[CACHED[0]] += held.pop(CACHED[1])
    chosen = [max(held, key=lambda one: held[one])]
    if chosen[0] not in RESERVED:
        chosen.append(max(RESERVED[:-1], key=lambda one: held[one]))
    return tuple(
        _with_owner(card_ledger, position, category, held[category], ledger)
        for category in chosen
        if held[category]
    )


def _with_owner(
    card_ledger: CardLedger, position: int, category: Category, held: int, ledger: Ledger
) -> LargestPart:
    if category not in LIVE:
        return LargestPart(category=category, held=held)
    for part, size in ledger.parts_of(category):
        if part in _TELLING and 2 * size > held:
            return LargestPart(category=category, held=held, owned=size, part=part)
    owner, owned = largest_owner(_owners(card_ledger, position, category), held)
    return LargestPart(category=category, held=held, owner=owner, owned=owned)


def largest_owner(owners: Iterable[tuple[str, int]], whole: int) -> tuple[str | None, int]:
    """Return the deepest path that holds more than half, and its bytes.

    Without one, the first part of a path that holds the most is returned.

    Args:
        owners: Paths such as `model.layers.0.fc`, and the bytes of each.
        whole: Bytes of all, those without a path included.
    """
    held: dict[str, int] = defaultdict(int)
    inside: dict[str, set[str]] = defaultdict(set)
    for path, size in owners:
        at = ""
        for step in _STEP.findall(path):
            inside[at].add(at + step)
            at += step
            held[at] += size
    at = ""
    while inside[at]:
        child = max(inside[at], key=lambda one: (held[one], one))
        if at and 2 * held[child] <= whole:
            break
        at = child
    return (at or None), held.get(at, 0)


def _owners(card_ledger: CardLedger, position: int, category: Category) -> list[tuple[str, int]]:
    """Return path and requested bytes of a category's live allocations."""
    rows = card_ledger.live(position)
    rows = rows[card_ledger.category[rows] == category]
    names, sizes = card_ledger.names[rows], card_ledger.allocations.requested[rows]
    distinct, which = np.unique(names, return_inverse=True)
    held = np.zeros(len(distinct), np.int64)
    np.add.at(held, which, sizes)
    largest = np.argsort(-held, kind="stable")[:_MAX_NAMES]
    found: list[tuple[str | None, int]] = [
        (card_ledger.texts[name], size)
        for name, size in zip(distinct[largest].tolist(), held[largest].tolist(), strict=True)
        if name != NO_NAME
    ]
    unnamed = rows[names == NO_NAME]
    unnamed = unnamed[np.argsort(-card_ledger.allocations.requested[unnamed], kind="stable")]
    found += [
        (card_ledger.name(row), int(card_ledger.allocations.requested[row]))
        for row in unnamed[:_MAX_UNNAMED].tolist()
    ]
    paths = [(_path(name, category), size) for name, size in found if name is not None]
    return [(path, size) for path, size in paths if path is not None]


def _path(name: str, category: Category) -> str | None:
    """Return the module or variable in a name; None if it has none."""
    if category == Category.WORKSPACE:
        return None
    name = without_shape(name)
    if is_graph_name(name):
        return module_in_name(name)
    words = _WORDS.match(name)
    found = _PATH.match(name, words.end() if words else 0)
    if found is None:
        return None
    if category in _OF_PARAMETERS:
        return module_of_parameter(found[0].removesuffix(".grad")) or found[0]
    return found[0]
