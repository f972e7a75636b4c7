"""Search for the largest value that fits, with few runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

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
        flat: Whether the search ended because the variable changes nothing more.
        flat_from: The smallest value from which it changes nothing; None if not known.
        requested: Returns a number that values with the same requests share, or None: equal bytes
            at the peak alone do not say that a variable changes nothing.
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
    flat_from: int | None = None
    requested: Callable[[int], int | None] | None = None
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

    @property
    def top(self) -> int:
        """The largest value that can be searched.

        Where the program fails above the answer for another reason than memory, it is the answer.
        """
        top = CEILING if self.high is None else self.high
        if self.limit is not None and self._seen.get(self.limit, ("",))[0] == "fails":
            top = min(top, self.limit - self.step)
        return self.nearest(top)

    def verdicts(self) -> dict[int, bool]:
        """Return whether each value fits that was run; False if it fails."""
        return {value: verdict == "fits" for value, (verdict, _) in self._seen.items()}

    def bytes_of(self, value: int) -> int:
        """Return the bytes that a value needs which was run; 0 if it failed."""
        return self._seen[value][1]

    def refine(self) -> None:
        """Narrow the bounds to one step, whatever `loose` is."""
        self.loose = 0.0
        self._between()

    def run(self, start: int) -> None:
        """Search from `start`: outwards first, then between the bounds.

        The bounds are the largest value that fits and the smallest above it that does not.
        """
        start = self.nearest(start)
        if self.try_value(start) == "fits":
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
        if self.flat and self._level():
            self._find_level()

    def _downwards(self) -> None:
        """Go down until a value fits.

        The formula's guess is tried first, then halves: small runs are cheap.
        """
        value = self.limit or self.low
        guess = self.nearest(self.first_guess or value)
        if self.low < guess < value and self.try_value(guess) == "fits":
            self.best = guess
            return
        while value > self.low:
            value = self.nearest(max(self.low, value // 2))
            if self.try_value(value) == "fits":
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
        verdict = self.try_value(value)
        if verdict != "fails" or not self.best:
            return value, verdict
        known = [v for v, (said, _) in self._seen.items() if said != "fails"]
        step = self.step * 2
        while step <= self.best and all(v % step == 0 for v in known):
            rounded = value // step * step
            if (
                rounded > self.best
                and rounded not in self._seen
                and self.try_value(rounded) != "fails"
            ):
                self.step, self.widened = step, True
                return rounded, self.try_value(rounded)
            step *= 2
        return value, verdict

    def try_value(self, value: int) -> Verdict:
        """Run a value unless it was, and return its verdict."""
        if value not in self._seen:
            self._seen[value] = self.test(value)
            self.flat = self.high is None and len(self._level()) >= FLAT
        return self._seen[value][0]

    def _level(self) -> list[int]:
        """Return the values that take the bytes of the largest one.

        Each is at least twice the one before.
        """
        found: list[int] = []
        fitting = sorted((v for v, (said, _) in self._seen.items() if said == "fits"), reverse=True)
        for value in fitting:
            if self._figures(value) != self._figures(fitting[0]):
                break
            if not found or value * 2 <= found[-1]:
                found.append(value)
        return found

    def _figures(self, value: int) -> tuple[int, int | None]:
        requested = None if self.requested is None else self.requested(value)
        return self._seen[value][1], requested

    def _find_level(self) -> None:
        """Find the smallest value of those that take the same, by halving."""
        level = self._level()[-1]
        below = max((v for v in self._seen if v < level), default=None)
        while below is not None and level - below > self.step:
            middle = self.nearest((below + level) // 2)
            if not below < middle < level:
                break
            self.try_value(middle)
            same = self._figures(middle) == self._figures(level)
            below, level = (below, middle) if same else (middle, level)
        self.flat_from = level
