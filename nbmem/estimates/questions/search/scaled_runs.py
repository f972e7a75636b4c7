"""Predict whether values fit, from the requests of a few runs.

Runs that request and free the same blocks differ only in the sizes. Each size is a polynomial of
the variable, of degree 2 at most, as it is for a batch or a length. So the requests of any value
between are known, and the simulated allocator serves them in milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nbmem.allocator.recordings.request_sequence import (
        RefusedRequest,
        ReplayedPeak,
        RequestSequence,
    )
    from nbmem.core.arrays import Ints
    from nbmem.estimates.runs.probe_run import Reply
    from nbmem.virtual.cards import Card

NO_LIMIT = 1 << 60
EXACT = 1e-4
"""Part of the requested bytes by which a run may differ from its prediction. What no polynomial
describes, such as a convolution's workspace, is less."""


class ScaledRuns:
    """The runs of a program, and replays of their requests at other values.

    Attributes:
        replayed: Values whose requests were replayed without a run of their own.
    """

    def __init__(self, card: Card) -> None:
        self.replayed: set[int] = set()
        self._card = card
        self._runs: dict[int, Reply] = {}
        self._kinds: dict[int, int] = {}
        self._outcomes: dict[tuple[int, int, str | None], ReplayedPeak | None] = {}

    def add(self, value: int, reply: Reply) -> None:
        """Add a run. Replays that it does not change remain."""
        if not reply.requests or value in self._runs:
            return
        if not self._foresees(value, reply):
            self._outcomes.clear()
        for key in [key for key in self._outcomes if key[0] == value]:
            del self._outcomes[key]
        like = (
            k for v, k in self._kinds.items() if _are_like(self._runs[v].requests, reply.requests)
        )
        self._kinds[value] = next(like, value)
        self._runs[value] = reply

    def _foresees(self, value: int, reply: Reply) -> bool:
        """Return whether the runs so far foretell a run's requests."""
        ways = list(self._ways(value)) if self._runs else []
        if len(ways) != 1 or not ways[0]:
            return False
        if not _are_like(self._runs[ways[0][0]].requests, reply.requests):
            return False
        found = self._sizes(ways[0], value)
        pairs = zip(found, reply.requests, strict=True)
        wrong = sum(int(np.abs(sizes - run.sizes).sum()) for sizes, run in pairs)
        return wrong <= EXACT * sum(int(run.sizes.sum()) for run in reply.requests)

    @property
    def values(self) -> list[int]:
        """The values that were run and can be scaled, ascending."""
        return sorted(self._runs)

    @property
    def operations(self) -> int:
        """The number of requests and frees of the largest run; 0 without one."""
        return max(
            (sum(len(s.operations) for s in r.requests) for r in self._runs.values()), default=0
        )

    def requested(self, value: int) -> int | None:
        """Return a number that runs with the same requests share, or None."""
        reply = self._runs.get(value)
        return None if reply is None else hash(tuple(s.sizes.tobytes() for s in reply.requests))

    def has_setting(self, conf: str) -> bool:
        """Return whether a setting such as `expandable_segments:True` is on."""
        name = conf.partition(":")[0]
        return any(getattr(s.settings, name) for r in self._runs.values() for s in r.requests)

    def with_same_requests(self, value: int) -> list[int]:
        """Return the run values that request as a run value does, itself included."""
        return [v for v in self.values if self._kinds[v] == self._kinds[value]]

    def adjacent_values(self, value: int) -> list[int]:
        """Return the run values next to a value: one below and one above."""
        known = self.values
        at = bisect_left(known, value)
        return known[max(at - 1, 0) : at + 1]

    def replay(self, value: int, margin: int, conf: str | None = None) -> ReplayedPeak | None:
        """Replay a value's requests on the card, with some of it taken.

        Between runs that request differently, both ways are replayed, and the worse counts.

        Args:
            value: Any value between those that were run, or beside them.
            margin: Bytes of the card that the process cannot have.
            conf: Text of PYTORCH_CUDA_ALLOC_CONF that is added to the settings; None: nothing.

        Returns:
            The outcome; None if the requests are not known.
        """
        key = (value, margin, conf)
        if key not in self._outcomes:
            ways = list(self._ways(value))
            found = [self._outcome(way, value, margin, conf) for way in ways]
            known = [outcome for outcome in found if outcome is not None]
            whole = bool(known) and len(known) == len(found)
            self._outcomes[key] = max(known, key=_badness) if whole else None
            if whole and value not in self._runs:
                self.replayed.add(value)
        return self._outcomes[key]

    def fits(self, value: int, margin: int, conf: str | None = None) -> bool | None:
        """Return whether a value fits by its replay; None if it is not known."""
        outcome = self.replay(value, margin, conf)
        return None if outcome is None else outcome.fits

    def process(self, value: int) -> int | None:
        """Return the process bytes of a value on a card without a limit."""
        outcome = self.replay(value, self._card.total_bytes - NO_LIMIT)
        return None if outcome is None else outcome.reserved + outcome.outside

    def least(self, value: int) -> int | None:
        """Return the process bytes that a value cannot do without."""
        outcome = self.replay(value, self._card.total_bytes - NO_LIMIT)
        return None if outcome is None else outcome.allocated + outcome.outside

    def refused(self, value: int, margin: int) -> RefusedRequest | None:
        """Return the request with which a value runs out of memory, or None."""
        outcome = self.replay(value, margin)
        return None if outcome is None else outcome.refused

    def _ways(self, value: int) -> Iterator[Sequence[int]]:
        """Yield sets of run values from which a value's requests follow.

        An empty set is one that does not suffice.
        """
        if value in self._runs:
            yield [value]
            return
        ways: list[list[int]] = []
        for near in self.adjacent_values(value):
            same = self.with_same_requests(near)
            if same not in ways:
                ways.append(same)
        for same in ways:
            yield _points(value, same) if len(same) > 1 else []

    def _outcome(
        self, points: Sequence[int], value: int, margin: int, conf: str | None
    ) -> ReplayedPeak | None:
        if not points:
            return None
        limit = self._card.total_bytes - margin - self._card.unowned_with(1 + bool(margin))
        first = self._runs[points[0]].requests
        pairs = zip(first, self._sizes(points, value), strict=True)
        return max((run.replay(limit, sizes.tolist(), conf) for run, sizes in pairs), key=_badness)

    def _sizes(self, points: Sequence[int], value: int) -> list[Ints]:
        """Return the sizes of a value's requests on each card."""
        runs = [self._runs[point].requests for point in points]
        weights = _weights(value, points)
        cards = zip(*runs, strict=True)
        return [_scaled([run.sizes for run in card], weights) for card in cards]


def _badness(outcome: ReplayedPeak) -> tuple[bool, int]:
    return not outcome.fits, outcome.reserved


def _are_like(one: Sequence[RequestSequence], other: Sequence[RequestSequence]) -> bool:
    return len(one) == len(other) and all(a.is_like(b) for a, b in zip(one, other, strict=True))


def _points(value: int, known: Sequence[int]) -> list[int]:
    """Choose the values around one, and the farthest of the others.

    What no polynomial describes, such as a workspace, is then wrong by little.
    """
    at = min(max(bisect_left(known, value), 1), len(known) - 1)
    around = list(known[at - 1 : at + 1])
    others = [v for v in known if v not in around]
    return [*around, max(others, key=lambda v: abs(v - value))] if others else around


def _weights(value: int, points: Sequence[int]) -> list[float]:
    """Return each point's weight in the polynomial through all of them."""
    return [
        math.prod((value - other) / (point - other) for other in points if other != point)
        for point in points
    ]


def _scaled(sizes: Sequence[Ints], weights: Sequence[float]) -> Ints:
    if len(sizes) == 1:
        return sizes[0]
    mixed = sum(size * weight for size, weight in zip(sizes, weights, strict=True))
    least = np.minimum(np.minimum.reduce(list(sizes)), 1)
    scaled: Ints = np.maximum(np.rint(mixed), least).astype(np.int64)
    return scaled
