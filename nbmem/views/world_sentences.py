"""Write the sentences about a world of ranks, for text and HTML."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.core.session.ranks import numbers_text
from nbmem.core.units import format_bytes, format_ms
from nbmem.report.analysis.source_lines import frame_line
from nbmem.views import report_sentences
from nbmem.views.markup import clipped, one_line

if TYPE_CHECKING:
    from nbmem.core.session.events import Stack
    from nbmem.report.analysis.world.world_report import (
        HostMemory,
        Imbalance,
        RankRow,
        SharedCard,
        WorldReport,
    )

_LONGEST_ERROR, _LONGEST_NAME = 200, 80
_SOCKET = re.compile(r"\[[\d.:a-f]+\]:\d+|\[\d[\d.]*\]")
"""Addresses in a message; without them, equal errors of several ranks are equal texts."""
STATES = {
    "finished": "finished",
    "failed": "failed",
    "running": "still running",
    "silent": "silent",
    "lost": "no end",
}
CROWDED = 0.8
"""Part of a host's memory from which its ranks may run out of it."""
HANGS_NS = 10 * 10**9
"""Time without progress of any rank after which a world counts as hanging."""
MAX_SENTENCES = 24
"""Maximum number of sentences of one kind."""


_DO = {
    Category.INPUTS: "Give each rank batches of one size: as many rows, padded to one length, or "
    "bins of as many tokens.",
    Category.ACTIVATIONS: "Its samples are larger, or its layers: give each rank batches of one "
    "size.",
    Category.OPTIMIZER_STATE: "Shard each parameter over all ranks (fully_shard), not whole "
    "parameters over the ranks.",
    Category.WEIGHTS: "Shard each parameter over all ranks, and keep other models off this card.",
    Category.COMMUNICATION: "Gather on this card no more than on the others: a full state dict "
    "goes to the host (cpu_offload=True).",
    Category.USER_TENSORS: "What one rank keeps for all (results, a full state dict) belongs in "
    "the host's memory: .cpu().",
}
"""What to do about a rank that has more of a category than the others."""


def verdict(world: WorldReport) -> str:
    """Return the main sentence of a world: the first OOM, or the peak."""
    out, top = world.first_out, world.highest
    if out is not None:
        refusal = out.refusal
        layer = f" in {one_line(refusal.layer)}" if refusal.layer else ""
        at = f", at {one_line(frame_line(refusal.stack[0]))}" if refusal.stack else ""
        return (
            f"Rank {out.rank} of {world.size} ran out of memory first{layer}{at}: it asked for "
            f"{format_bytes(refusal.wanted)}, and {format_bytes(refusal.free)} were free"
        )
    if top is None or top.device is None:
        return f"{world.size} ranks, and none of them used a card"
    place = report_sentences.phase_and_step(top.phase, top.step)
    total = format_bytes(top.device.total_bytes)
    return (
        f"Rank {top.rank.number} of {world.size} peaks highest: {format_bytes(top.allocated)} "
        f"{'in tensors' if world.on_host else 'allocated'} of {total}"
        + (f" in {place}" if place else "")
    )


def peak_of(row: RankRow) -> str:
    """Return a rank's peak: `peak 116.7 MiB in optimizer, step 0`."""
    place = report_sentences.phase_and_step(row.phase, row.step)
    return f"peak {format_bytes(row.allocated)}" + (f" in {place}" if place else "")


def about(world: WorldReport) -> str:
    """Return what ran, on which cards and hosts, and how the ranks ended."""
    names = {one_line(row.device.name): row for row in world.rows if row.device}
    cards = " and ".join(names) or "no card"
    kinds = {
        report_sentences.virtual(row.device): row
        for row in world.rows
        if row.device and row.device.virtual
    }
    virtual = f" ({'; '.join(kinds)})" if kinds else ""
    hosts = {row.rank.host for row in world.rows}
    states = [STATES[row.state] for row in world.rows]
    counts = [f"{states.count(state)} {state}" for state in STATES.values() if state in states]
    if world.missing:
        counts.append(f"{len(world.missing)} without a file")
    every = len(world.rows) == world.size  # else there are hosts without data
    where = f" on {len(hosts)} hosts" if every and len(hosts) > 1 else ""
    title = one_line(world.title) or "untitled"
    return f"{title}, {world.size} ranks{where}, {cards}{virtual}: {', '.join(counts)}"


def sentences(world: WorldReport) -> Iterator[str]:
    """Yield what a person should know beyond the tables."""
    if world.missing:
        why = (
            "not run, or ended before they wrote one"
            if all(row.device is not None and row.device.virtual for row in world.rows)
            else "never started, not traced, or writing to another disk"
        )
        yield f"There is no file of {numbers_text(world.missing)}: {why}."
    yield from _waiting(world)
    yield from _errors(world)
    for one in world.imbalances[:MAX_SENTENCES]:
        yield _out_of_balance(one)
    for card in world.shared:
        yield _shared(card)
    for host in world.hosts:
        if host.together >= CROWDED * host.total:
            yield _crowded(host)


def _waiting(world: WorldReport) -> Iterator[str]:
    """Yield where the ranks without an end are, most ranks first."""
    left = [row for row in world.rows if row.state in {"running", "silent", "lost"}]
    still = [row.last_ns - row.place_ns for row in left if row.place_ns is not None]
    runs = {row.state for row in left} == {"running"}
    if runs and len(still) == world.size and min(still) >= HANGS_NS:
        yield (
            f"Nothing has moved on any rank for {format_ms(min(still))}: they hang where some wait "
            "for a collective that others never call."
        )
    places: dict[tuple[str, str], list[RankRow]] = {}
    for row in left:
        places.setdefault((row.state, _place(row)), []).append(row)
    for (state, place), rows in sorted(places.items(), key=lambda item: -len(item[1])):
        who = numbers_text([row.rank.number for row in rows]).capitalize()
        since = [row.last_ns - row.place_ns for row in rows if row.place_ns is not None]
        long = f" for {format_ms(min(since))}" if since and min(since) >= 1e9 else ""
        many = len(rows) > 1
        if state == "running":
            yield f"{who} still {'run' if many else 'runs'}: {place}{long}."
        elif state == "silent":
            yield (
                f"{who} {'write' if many else 'writes'} no more, but the process is there (code in "
                f"C holds the interpreter, or it is stopped): at last {place}{long}."
            )
        else:
            heard = time.strftime("%H:%M:%S", time.localtime(max(r.last_ns for r in rows) / 1e9))
            yield (
                f"{who} came to no end (killed, or the machine is gone), last heard of at {heard}: "
                f"{place}{long}."
            )


def _errors(world: WorldReport) -> Iterator[str]:
    """Yield the errors that ended ranks; equal errors are one sentence."""
    errors: dict[str, list[int]] = {}
    for row in world.rows:
        if row.error and row.state == "failed" and row.refusal is None:
            errors.setdefault(_SOCKET.sub("[...]", row.error), []).append(row.rank.number)
    for error, ranks in errors.items():
        who = numbers_text(ranks).capitalize()
        yield f"{who} ended by {clipped(one_line(error), _LONGEST_ERROR)}"


def _place(row: RankRow) -> str:
    """Return `in all_reduce, called at train.py:31, step 4`."""
    step = "" if row.last_step is None else f", step {row.last_step}"
    return (place_text(row.place) or "before its first line") + step


def place_text(place: Stack) -> str | None:
    """Return where a rank's main thread was; None if unknown.

    For instance `in all_reduce, called at train.py:31`.
    """
    if not place:
        return None
    at = one_line(frame_line(place[-1]))
    return f"at {at}" if len(place) == 1 else f"in {one_line(place[0].function)}, called at {at}"


def _crowded(host: HostMemory) -> str:
    many = len(host.ranks) > 1
    who = f"The {len(host.ranks)} ranks" if many else numbers_text(host.ranks).capitalize()
    return (
        f"{who} of {one_line(host.host)} took {format_bytes(host.together)} of the host's "
        f"{format_bytes(host.total)}{', each at its highest' if many else ''}: where that runs "
        "out, the system kills processes without a word. If each builds the whole model there or "
        'reads the whole checkpoint: `with torch.device("meta"):`, `torch.load(..., mmap=True)`.'
    )


def _out_of_balance(one: Imbalance) -> str:
    share = report_sentences.percent(one.more, one.median)
    counts = [
        f"{format_bytes(size)} more {category.label}"
        + (_named(one.named) if category is one.cause else "")
        for category, size in one.by_category[:3]
    ]
    why = f": {', '.join(counts)}" if counts else ""
    remedy = None if one.cause is None else _DO.get(one.cause)
    return (
        f"Rank {one.rank} peaks {format_bytes(one.more)} ({share}) above the median of the ranks "
        f"that do the same{why}." + (f" {remedy}" if remedy else "")
    )


def _named(name: str | None) -> str:
    """Return the largest holder of a category in parentheses.

    Empty if it is unknown.
    """
    return "" if name is None else f" (the largest: {clipped(one_line(name), _LONGEST_NAME)})"


def _shared(card: SharedCard) -> str:
    who = numbers_text(card.ranks).capitalize()
    return (
        f"{who} share one card of {one_line(card.host)} ({one_line(card.card)}): together up to "
        f"{format_bytes(card.together)} of {format_bytes(card.total)}. Give each its own: "
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])).'
    )
