"""Search for the largest value that fits, with few runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Verdict = Literal["fits", "full", "fails"]
"""`full`: out of memory. `fails`: for a reason that is not memory."""

CEILING = 1 << 24
"""Where a search without an upper bound ends: beyond it, nothing depends on the variable."""
FLAT = 5
"""Values with equal bytes, each at least twice the one before, that end a search."""
FARTHEST = 8
"""A value is never more than this many times the largest that fitted: a guess must not cost the
host's memory, where a batch is made on the CPU."""


@dataclass(slots=True, kw_only=True)
class Search:
    """The parameters and the result of a search.

    Attributes:
        test: Runs a value; returns its verdict and the bytes that it needs (0 if unknown).
        room: Bytes that are available.
        low: Smallest value.
        high: Largest value, or None.
        step: Distance of the values that are searched; grows if only multiples of it run.
        loose: Part of the answer by which it may be too small; 0 for none.
        least: The fewest bytes that a value which ran can do with, after torch releases its cache.
            The search extrapolates them to `room` at once. It may skip values that fit if the curve
            is not monotone.
        first_guess: What fits by a formula, for a search whose first value does not fit; or None.
        best: The largest value that fits, or None.
        limit: The value one step above it that does not, or None.
        widened: Whether values between the steps failed for a reason that is not memory.
        flat: Whether the search ended because the variable changes nothing.
    """

    test: Callable[[int], tuple[Verdict, int]]
    room: int
    low: int = 1
    high: int | None = None
    step: int = 1
    loose: float = 0.0
    least: Callable[[int], int] | None = None
    first_guess: int | None = None
    best: int | None = None
    limit: int | None = None
    widened: bool = False
    flat: bool = False
    _seen: dict[int, tuple[Verdict, int]] = field(default_factory=dict)

    def has(self, value: int) -> bool:
        """Return whether a value is among those that are searched."""
        return self.nearest(value) == value

    def nearest(self, value: int) -> int:
        """Return the nearest searched value at or below a value.

        It is at least `low`.
        """
        value = max(value, self.low)
        if self.high is not None:
            value = min(value, self.high)
        offset = 0 if self.widened else self.low % self.step
        return max(self.low, (value - offset) // self.step * self.step + offset)

    def run(self, start: int) -> None:
        """Search from `start`: outwards first, then between the bounds.

        The bounds are the largest value that fits and the smallest above it that does not.
        """
        start = self.nearest(start)
        if self._try(start) == "fits":
            self.best = start
            self._upwards()
        else:
            self.limit = start
            self._downwards()
        self._between()

    def _upwards(self) -> None:
        top = self.high if self.high is not None else CEILING
        stride = self.step
        while self.best is not None and self.best < top and not self.flat:
            guess, stride = self._guess(), max(stride, self.step, int(self.best * self.loose))
            if guess < self.best + stride:  # torch released its cache: on to where it no longer can
                guess = self._highest()
            if guess < self.best + stride:  # or in growing strides
                guess, stride = self.best + stride, stride * 2
            value, verdict = self._running(self.nearest(min(guess, top)))
            if value <= self.best:
                return
            if verdict == "fits":
                self.best = value
            else:
                self.limit = value
                return

        if self.best == CEILING:
            self.flat = True

    def _downwards(self) -> None:
        """Go down until a value fits.

        The formula's guess is tried first, then halves: small runs are cheap.
        """
        value = self.limit or self.low
        guess = self.nearest(self.first_guess or value)
        if self.low < guess < value and self._try(guess) == "fits":
            self.best = guess
            return
        while value > self.low:
            value = self.nearest(max(self.low, value // 2))
            if self._try(value) == "fits":
                self.best = value
                return
            self.limit = value

    def _between(self) -> None:
        """Narrow the bounds by the line's guess twice, then by halving."""
        guesses = 2
        while self.best is not None and self.limit is not None:
            if self.limit - self.best <= max(self.step, self.best * self.loose):
                return
            value = (self.best + self.limit) // 2
            guess = self._guess()
            if guesses and self.best < guess < self.limit:
                value, guesses = guess, guesses - 1
            inside = min(max(value, self.best + self.step), self.limit - self.step)
            value, verdict = self._running(self.nearest(inside))
            if not self.best < value < self.limit:
                return
            if verdict == "fits":
                self.best = value
            else:
                self.limit = value

    def _guess(self) -> int:
        """Extrapolate the two largest values that ran to the available room."""
        points = sorted((v, b) for v, (verdict, b) in self._seen.items() if verdict != "fails")
        if len(points) < 2:
            best = self.best or self.low
            return best * 2
        return self._meets(points)

    def _highest(self) -> int:
        """Extrapolate the least bytes of values to the room; 0 if unknown.

        The least bytes are those that a value cannot do without.
        """
        if self.least is None:
            return 0
        ran = sorted(v for v, (verdict, _) in self._seen.items() if verdict != "fails")
        return self._meets([(v, self.least(v)) for v in ran]) if len(ran) > 1 else 0

    def _meets(self, points: list[tuple[int, int]]) -> int:
        (v0, b0), (v1, b1) = points[-2:]
        best = self.best or self.low
        if b1 <= b0:
            return best * 2
        guess = v1 + (self.room - b1) * (v1 - v0) / (b1 - b0)
        return int(min(max(guess, 0), best * FARTHEST))

    def _running(self, value: int) -> tuple[int, Verdict]:
        """Try a value; round it until the program runs.

        Rounding applies where a value fails for another reason than memory.
        """
        verdict = self._try(value)
        if verdict != "fails" or not self.best:
            return value, verdict
        known = [v for v, (said, _) in self._seen.items() if said != "fails"]
        step = self.step * 2
        while step <= self.best and all(v % step == 0 for v in known):
            rounded = value // step * step
            if rounded > self.best and rounded not in self._seen and self._try(rounded) != "fails":
                self.step, self.widened = step, True
                return rounded, self._try(rounded)
            step *= 2
        return value, verdict

    def _try(self, value: int) -> Verdict:
        if value not in self._seen:
            self._seen[value] = self.test(value)
            known = [b for said, b in self._seen.values() if said == "fits"]
            self.flat = self.high is None and len(known) >= FLAT and len(set(known)) == 1
        return self._seen[value][0]
