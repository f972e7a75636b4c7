"""Decide whether a recording's requests would be served on other cards.

The requests are replayed in the simulated allocator on each card's size, where that is needed. A
card that has more than the recording ever reserved serves all of it; one that has less than its
tensors cannot. Only the cards between need a replay, and most recordings need none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import BESIDE, Category
from nbmem.core.session.oom import is_oom_text
from nbmem.core.units import MIB, format_bytes
from nbmem.report.analysis.cache_releases import releases_for_requests
from nbmem.report.analysis.moments import phase_at
from nbmem.report.analysis.oom.failed_request import request_that_ended
from nbmem.report.analysis.oom.trial import Outcome, Trial
from nbmem.report.analysis.what_if import begin_replay, recorded_settings
from nbmem.report.ledger.allocation_facts import NO_NAME
from nbmem.report.ledger.cublas_workspaces import CUBLAS
from nbmem.report.model import CardFit, WouldRunOn

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.card_sizes import CardSize
    from nbmem.report.analysis.replay_variants import ReplayOutcome
    from nbmem.report.ledger.card_ledger import CardLedger

MAX_EVENTS = 60_000
"""Events that all replays of a recording may have together: a third of a second."""
_NO_LIMIT = 1 << 59
_KERNEL = re.compile(r" \(\d+(?:, \d+){2,4}\) \w+$")
"""Shape of a convolution's weight: three to five dimensions."""
_TOO_LONG = (
    "the size is near what it reserves, and no more than "
    f"{MAX_EVENTS:,} events are replayed for one report"
)
_NO_BFLOAT16 = "the recorded tensors are bfloat16, for which it has other kernels of attention"
_WITHOUT = (
    "its tensors fit, but not the work areas of its convolutions: torch then takes other kernels, "
    "which the recording does not show"
)
_HANDLES = 4
"""Most handles of one library that are told apart in the recorded process."""
_SLACK = 48 * MIB
"""How far cached bytes may shift where workspaces have other sizes: decides when to replay."""


def would_run_on(
    card_ledger: CardLedger,
    cards: Sequence[CardSize],
    recorded: CardSize | None,
    margin: float,
    most_events: int = MAX_EVENTS,
) -> WouldRunOn | None:
    """Return which cards would serve the recorded requests.

    Args:
        card_ledger: The recorded card's ledger.
        cards: The cards.
        recorded: The recorded card, where its name is known.
        margin: Part of a card that should stay free, as `fit` keeps it.
        most_events: Events that all replays may have together.

    Returns:
        The cards, the smallest first; None where there is nothing to say.
    """
    info = card_ledger.trace.info
    if info.is_host or not card_ledger.events:
        return None
    if not info.keeps_history:
        why = "Other cards are not simulated: torch's own allocator did not record these requests."
        return WouldRunOn(limits=(why,))
    question = _Question(card_ledger, recorded, margin, most_events)
    ordered = sorted(cards, key=lambda card: (card.nvml_total, card.total))
    if is_oom_text(card_ledger.session.error or ""):
        return _after_failure(question, ordered)
    found = {card: question.answer(card) for card in ordered}
    enough = [question.room(card, 0) for card in ordered if found[card].fits]
    answers = (_shortage(found[card], question.room(card, 0), enough) for card in ordered)
    return WouldRunOn(cards=tuple(answers), limits=tuple(_limits(card_ledger)))


def _shortage(found: CardFit, room: int, enough: Sequence[int]) -> CardFit:
    """Return an answer whose shortage is no more than to a card that fits."""
    short = [one - room for one in enough if one > room]
    if found.fits is not False or not short:
        return found
    return replace(found, short=min(short) if found.short is None else min(found.short, *short))


class _Question:
    """One recording, and what is known of it before any replay."""

    def __init__(
        self, card_ledger: CardLedger, recorded: CardSize | None, margin: float, most_events: int
    ) -> None:
        self.card_ledger, self.recorded, self.margin = card_ledger, recorded, margin
        self._left = most_events
        trace = card_ledger.trace
        fraction = recorded_settings(trace).per_process_memory_fraction
        self.fraction = 1.0 if fraction is None else fraction
        self._refusals = bool(card_ledger.refused.errors)
        self.under_pressure = self._refusals or bool(releases_for_requests(trace))
        named = any(text.endswith(" bfloat16") for text in card_ledger.texts)
        self._bfloat16 = named and recorded is not None and recorded.bfloat16
        self._work_areas = _work_areas(card_ledger)
        never = np.full(len(self._work_areas), -1, np.int64)
        self.least = int(card_ledger.allocated_without(self._work_areas, never).max())
        self._reserved: dict[int, int | None] = {}
        if not self.under_pressure:
            self._reserved[0] = int(card_ledger.reserved.max())
        a = card_ledger.allocations
        default = CUBLAS if recorded is None else (recorded.cublas_workspace,)
        is_workspace = (card_ledger.category == Category.WORKSPACE) & np.isin(a.requested, default)
        self.workspaces = np.flatnonzero(is_workspace)

    @property
    def complete(self) -> bool:
        """True if nothing was lost, held before or left out."""
        return next(iter(_limits(self.card_ledger)), None) is None

    def room(self, card: CardSize, kept: int) -> int:
        """Return the bytes that torch may reserve on a card.

        Args:
            card: The card.
            kept: Bytes that are to stay free.
        """
        unowned = card.unowned * (2 if kept else 1)
        free = card.total - kept - unowned - self.outside(card)
        return min(free, int(self.fraction * card.total))

    def outside(self, card: CardSize) -> int:
        """Return the bytes of the process outside of torch's allocator.

        They are that card's own context and handles, as many as were recorded, and what else the
        recorded process held.
        """
        ledger = self.card_ledger.ledger(self.card_ledger.events)
        beside = sum(ledger[category] for category in BESIDE)
        own = self.recorded
        handles = (min(len(self.workspaces), 2), 0, 0)
        rest = 0
        if own is not None and ledger.process_known:
            handles, rest = _handles(ledger[Category.CONTEXT] - own.context, own)
        cublas, cudnn, nccl = handles
        used = cublas * card.cublas + cudnn * card.cudnn + nccl * card.nccl
        return card.context + used + rest + beside

    def answer(self, card: CardSize) -> CardFit:
        """Decide one card, by a bound if one suffices, else by a replay."""
        alike = self.recorded is not None and self.recorded.capability == card.capability
        exact = alike and self.complete and not self.under_pressure
        empty = CardFit(card=card.key, total=card.nvml_total, fits=None, exact=exact)
        found = self._by_bound(card, empty) or self._by_replay(card, empty)
        if found.fits and self._bfloat16 and not card.bfloat16:
            return replace(empty, margin=False, exact=False, how=_NO_BFLOAT16)
        return found

    def _by_bound(self, card: CardSize, empty: CardFit) -> CardFit | None:
        """Decide a card by its size alone; None if that does not suffice."""
        more = self.more(card)
        hard, room = self.room(card, 0), self.room(card, int(card.total * self.margin))
        slack, needed = _SLACK if more else 0, self.reserved(card)
        beyond = card.total - card.unowned - self.outside(card)
        if self.recorded is not None and card.key == self.recorded.key:
            held = int(self.card_ledger.reserved.max())
            spare = max(0, beyond - held)
            how = "the program ran on it"
            return replace(empty, fits=True, margin=held <= room, spare=spare, how=how)
        if self.least + more > hard + slack:
            short = None if needed is None else needed - hard
            how = "its tensors alone are more than the card has"
            return replace(empty, fits=False, margin=False, short=short, how=how)
        if needed is not None and needed + slack <= room:
            how = "it reserves less than the card has"
            return replace(empty, fits=True, spare=beyond - needed, how=how)
        return None

    def _by_replay(self, card: CardSize, empty: CardFit) -> CardFit:
        """Decide a card by a replay of the recording on its size."""
        hard, room = self.room(card, 0), self.room(card, int(card.total * self.margin))
        served = self.replay(card, hard)
        if served is None:
            return self._without_replay(card, empty)
        if served.refused is not None and self._goes_without(card, hard):
            return replace(empty, margin=False, exact=False, how=_WITHOUT)
        if served.refused is not None:
            needed = self.reserved(card)
            short = None if needed is None else max(needed - hard, 0) or None
            how = "replayed on the card's size, a request is refused"
            return replace(empty, fits=False, margin=False, short=short, how=how)
        again = served if served.peak_reserved <= room else self.replay(card, room)
        released = bool(served.retries) and not self._refusals
        how = "replayed on the card's size, all requests are served"
        beyond = card.total - card.unowned - self.outside(card)
        return replace(
            empty,
            fits=True,
            margin=again is not None and again.refused is None,
            spare=max(0, beyond - served.peak_reserved),
            releases=released,
            how=how + " after torch releases cached memory" * released,
        )

    def _without_replay(self, card: CardSize, empty: CardFit) -> CardFit:
        """Return what is known where a replay would take too long."""
        if not self._ran_on_less(card):
            return replace(empty, margin=False, exact=False, how=_TOO_LONG)
        more = self.more(card)
        held = int(self.card_ledger.reserved.max()) + more + (_SLACK if more else 0)
        kept = held <= self.room(card, int(card.total * self.margin))
        how = "the program ran on a card with less memory"
        return replace(empty, fits=True, margin=kept, exact=False, how=how)

    def _ran_on_less(self, card: CardSize) -> bool:
        """Return whether the recorded card gives torch less than this one."""
        own = self.recorded
        return own is not None and self.room(own, 0) + self.more(card) <= self.room(card, 0)

    def _goes_without(self, card: CardSize, limit: int) -> bool:
        """Return whether only work areas of convolutions are too large."""
        if not len(self._work_areas):
            return False
        places = self.card_ledger.allocations.allocated_at[self._work_areas].tolist()
        loose = self.replay(card, limit, frozenset(places))
        return loose is not None and loose.refused is None

    def more(self, card: CardSize) -> int:
        """Return by how many bytes cuBLAS's workspaces are larger on a card."""
        own = int(self.card_ledger.allocations.requested[self.workspaces].sum())
        return len(self.workspaces) * card.cublas_workspace - own

    def reserved(self, card: CardSize) -> int | None:
        """Return the bytes that torch reserves where there are enough.

        None if that would take too long to replay.
        """
        if 0 not in self._reserved:
            found = self.replay(None, _NO_LIMIT)
            self._reserved[0] = None if found is None else found.peak_reserved
        known = self._reserved[0]
        return None if known is None else known + self.more(card)

    def replay(
        self, card: CardSize | None, limit: int, may_fail: frozenset[int] = frozenset()
    ) -> ReplayOutcome | None:
        """Replay the recording on a card's size; None if it takes too long.

        Args:
            card: The card; None for the recorded one.
            limit: Bytes that torch may reserve.
            may_fail: Positions of requests that the program may go without.
        """
        card_ledger = self.card_ledger
        if card_ledger.events > self._left or limit <= 0:
            return None
        run = begin_replay(
            card_ledger, None, limit, may_fail=may_fail.union(card_ledger.refused.errors)
        )
        born = card_ledger.allocations.allocated_at[self.workspaces].tolist()
        size = None if card is None else card.cublas_workspace
        resized = {} if size is None else {at: size for at in born if at >= 0}
        outcome = run.replay(card_ledger.events, frozenset(), resized)
        self._left -= outcome.events
        return outcome


def _work_areas(card_ledger: CardLedger) -> Ints:
    """Select requests that may be work areas of convolutions.

    torch frees one by its next request. Where there is no room for it, torch takes a kernel with a
    smaller one. Which kernel that is depends on the card.
    """
    weights = np.unique(card_ledger.names[card_ledger.category == Category.WEIGHTS]).tolist()
    if not any(_KERNEL.search(card_ledger.texts[name]) for name in weights if name != NO_NAME):
        return np.zeros(0, np.int64)
    a = card_ledger.allocations
    return np.flatnonzero((a.allocated_at >= 0) & (a.freed == a.allocated_at + 1))


def _handles(held: int, own: CardSize) -> tuple[tuple[int, int, int], int]:
    """Tell the libraries' handles in a process, and the bytes of the rest.

    Args:
        held: Bytes of the process beside its tensors and a bare context.
        own: The recorded card.
    """
    counts = itertools.product(range(_HANDLES), range(_HANDLES), range(2))
    sums = {
        (cublas, cudnn, nccl): held - cublas * own.cublas - cudnn * own.cudnn - nccl * own.nccl
        for cublas, cudnn, nccl in counts
    }
    nearest = min(sums, key=lambda handles: (abs(sums[handles]), sum(handles)))
    return nearest, sums[nearest]


def _after_failure(question: _Question, cards: Sequence[CardSize]) -> WouldRunOn:
    """Decide each card by what would follow the request that failed.

    That is the rest of its step and one more, where they are known.
    """
    card_ledger = question.card_ledger
    case, limits = request_that_ended(card_ledger), tuple(_limits(card_ledger))
    if case is None:
        why = "The request that failed is not in the recording, so no card can be tried."
        return WouldRunOn(limits=(why, *limits))
    trial = Trial(case, (), phase_at(card_ledger, case.index + 1).phase)
    found: list[CardFit] = []
    for card in cards:
        if found and found[-1].fits and found[-1].margin:  # then a larger one goes on as well
            found.append(replace(found[-1], card=card.key, total=card.nvml_total))
            continue
        hard, room = (
            question.room(card, kept) - question.more(card)
            for kept in (0, int(card.total * question.margin))
        )
        outcome = trial.now(capacity=hard) if hard > case.capacity else None
        fits, how = _goes_on(outcome, trial)
        kept = bool(fits) and room > case.capacity and _goes_on(trial.now(capacity=room), trial)[0]
        found.append(
            CardFit(card=card.key, total=card.nvml_total, fits=fits, margin=bool(kept), how=how)
        )
    return WouldRunOn(cards=tuple(found), limits=limits, request_only=not trial.known)


def _goes_on(outcome: Outcome | None, trial: Trial) -> tuple[bool | None, str]:
    """Return whether a program goes on after its failure, and how it is known.

    None where the failed request is served, and what follows it is not known well enough.
    """
    if outcome is None:
        return False, "replayed on the card's size, the failed request fails again"
    if not trial.known:
        return None, "it serves the failed request, and what follows is not known"
    if outcome.kind == "more":
        return None, "it gets past the failed request, but memory grows with each step"
    if outcome.kind == "once" and trial.then.estimated:
        return None, "it gets past the failed request; by an estimate of the step it fails later"
    how = "replayed on the card's size with the rest of the step and one more"
    return outcome.kind == "on", how


def _limits(card_ledger: CardLedger) -> Iterator[str]:
    """Yield what makes the answers uncertain, one sentence each."""
    trace, session = card_ledger.trace, card_ledger.session
    if trace.dropped:
        yield f"{trace.dropped:,} older events were lost; the requests in them are not replayed."
    held = int(card_ledger.reserved[0])
    if held >= MIB:
        yield (
            f"{format_bytes(held)} were reserved before the recording began; they are taken to be "
            "there from the start."
        )
    if card_ledger.refused.failed and not is_oom_text(session.error or ""):
        yield "Memory ran out and the program went on; what it does where it does not is unknown."
    if not card_ledger.process_known:
        yield "What the process held beside torch is not known; a context and handles are assumed."
    if session.error and not is_oom_text(session.error):
        yield "The recording ended by an error, and what would have followed it is not counted."
    if len(session.devices) > 1:
        yield (
            f"The program used {len(session.devices)} cards; this is about what cuda:"
            f"{trace.info.index} held."
        )
    if trace.info.shared or trace.info.wddm:
        yield "The recorded driver moves memory to the host, which another one may not do."
