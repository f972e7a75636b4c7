"""Find the values that always fit, and those that fit by luck.

With a caching allocator a larger value may fit where a smaller one does not: it depends on how the
freed segments suit the next requests. So the values around a search's answer are replayed
(`scaled_runs`), and those on which the answer depends are run. Where the requests cannot be
replayed, a sample of values below the answer is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.allocator.recordings.request_sequence import RefusedRequest
    from nbmem.estimates.questions.search.scaled_runs import ScaledRuns
    from nbmem.estimates.questions.search.value_search import Search

LOOSE = 0.1
"""Part of its answer by which the search before this one may be too small."""
ROUNDS = 10
"""How often runs may correct the replays. Most answers take one or two."""
SPREAD = 100
"""Values that are tried all over the window."""
NEAR = 120
"""Values right below the first that fails, each of which must fit. In the programs that were tried
the failing ones lie closer together."""
BELOW = 0.05
"""How far below the first value that needs cached memory back the pass begins, as a part of it."""
SAMPLED = (0.002, 0.006, 0.015, 0.03, 0.05, 0.08, 0.12, 0.18)
"""Parts of the answer below it at which values are run if none can be replayed."""
SAMPLES = 16
"""Values whose requests must be known, most of them, for a window to be replayed."""


@dataclass(slots=True, kw_only=True)
class Band:
    """The values that fit: always, and by luck.

    Attributes:
        safe: The largest value below which every value that was tried fits; None if the smallest
            that was tried does not.
        best: The largest value that fits, or None.
        replayed: How many values were replayed without a run.
        refused: The request with which the first value above `safe` runs out of memory; None if it
            is not known.
        expandable: The value up to which all fit with expandable segments; None if there is no luck
            to be removed, or this was not searched.
        unchecked: On how many values the answer depends that are still to be run.
    """

    safe: int | None
    best: int | None
    replayed: int = 0
    refused: RefusedRequest | None = None
    expandable: int | None = None
    unchecked: int = 0


class BandSearch:
    """A search for the band around another search's answer.

    Args:
        search: A finished search, with its bounds and steps. The runs are made through it.
        scaled: The runs; whoever makes one for the search adds it.
        margins: Bytes of the card that are not to be had, the most first. A safe value fits with
            each of them; `best` fits with the first.
        show: Called with the band so far.
    """

    def __init__(
        self,
        search: Search,
        scaled: ScaledRuns,
        margins: Sequence[int],
        show: Callable[[Band], None] = lambda _band: None,
    ) -> None:
        self._search, self._scaled = search, scaled
        self._margins, self._show = margins, show
        self._bounds: tuple[int, int] | None = None

    def find(self, conf: str | None = None) -> Band:
        """Find the band, and let the search have its best value and limit.

        Args:
            conf: Allocator settings that may remove the luck; they are replayed, too.
        """
        search = self._search
        if search.limit is not None and search.top < search.limit:
            search.refine()  # above, it fails for another reason than memory: where, is run
        band = Band(safe=search.best, best=search.best)
        calm = search.best is not None and search.bytes_of(search.best) <= search.room
        if not search.flat and not (search.limit is None and calm):
            band = self._by_replays() or self._by_runs()
        search.best = band.best
        if band.best is not None:
            after = band.best + search.step
            search.limit = None if search.high is not None and after > search.high else after
        if conf is not None and self._bounds and band.safe != band.best:
            band.expandable = self._largest(*self._bounds, conf)
        return band

    def _largest(self, low: int, high: int, conf: str) -> int | None:
        """Return the value up to which all fit by replays with settings added."""
        if self._scaled.has_setting(conf):
            return None
        first = self._first(lambda value: self._always_fits(value, conf) is False, low, high)
        return None if first == low else self._before(first)

    def _by_replays(self) -> Band | None:
        """Replay and run until the runs on which the answer depends agree.

        None if the requests are not known.
        """
        search = self._search
        for _ in range(ROUNDS):
            if self._bounds is None:
                self._bounds = self._window()
            if self._bounds is None or not self._is_known(*self._bounds):
                return None
            band, critical = self._read(*self._bounds)
            low, high = self._bounds
            if band.safe is None and low > search.low:  # it begins too high
                self._bounds = search.nearest(low - (high - low) // 2), high
                continue
            band.unchecked = len(set(critical) - search.verdicts().keys())
            self._show(band)
            if self._clarify(critical):
                continue
            if not [value for value in critical if self._surprises(value)]:
                break
        return self._read(*self._bounds)[0] if self._bounds else None

    def _by_runs(self) -> Band:
        """Complete the search, and run a sample of the values below it."""
        search = self._search
        search.refine()
        best = search.best
        for part in SAMPLED if best is not None else ():
            value = search.nearest(int((best or 0) * (1 - part)))
            search.try_value(value)
            if search.bytes_of(value) <= search.room:
                break  # below, torch never has to release cached memory
        ran = search.verdicts()
        first = min((v for v, fits in ran.items() if not fits), default=None)
        below = [v for v, fits in ran.items() if fits and (first is None or v < first)]
        return Band(safe=max(below, default=None), best=best)

    def _clarify(self, values: Sequence[int]) -> bool:
        """Run the middle between two runs that request differently; or False.

        Somewhere between them the program begins to request as the other. Values there are known
        only roughly, so those on which the answer depends must not be among them.
        """
        search, scaled = self._search, self._scaled
        for value in values:
            below, *above = scaled.adjacent_values(value)
            if value in scaled.values or not above or above[0] in scaled.with_same_requests(below):
                continue
            middle = search.nearest((below + above[0]) // 2)
            if below < middle < above[0]:
                search.try_value(middle)
                self._pair(middle)
                return True
        return False

    def _surprises(self, value: int) -> bool:
        """Run a value unless it was; return whether its replay was wrong."""
        if value in self._search.verdicts():
            return False
        foreseen = self._scaled.fits(value, self._margins[0])
        return (self._search.try_value(value) == "fits") != foreseen

    def _window(self) -> tuple[int, int] | None:
        """Return the first and the last value on which the answer may depend.

        Below the first, the program fits without any release of cached memory. Above the last, its
        tensors alone exceed the card. Both ends are run. None if the requests are not known.
        """
        search, scaled = self._search, self._scaled
        start = search.limit if search.best is None else search.best
        if start is None or start not in scaled.values:
            return None
        self._pair(start)
        room = search.room

        def exceeds(value: int) -> bool | None:
            least = scaled.least(value)
            return None if least is None else least > room

        def presses(value: int) -> bool | None:
            process = scaled.process(value)
            return None if process is None else process > room

        top = search.top
        high = start
        while high < top and exceeds(high) is False:
            high = min(high * 2, top)
        high = self._first(exceeds, search.low, search.nearest(high))
        low = self._first(presses, search.low, high)
        low = max(search.nearest(int(low * (1 - BELOW))), search.low)
        for end in (low, high):
            search.try_value(end)
        for value in [v for v in scaled.values if low <= v <= high]:
            self._pair(value)
        return low, high

    def _first(self, holds: Callable[[int], bool | None], low: int, high: int) -> int:
        """Return the first value for which something holds, by halving.

        It is taken to hold from there on; `high` if it never does.
        """
        search = self._search
        while high - low > search.step:
            middle = search.nearest((low + high) // 2)
            if not low < middle < high:
                break
            low, high = (low, middle) if holds(middle) else (middle, high)
        return low if holds(low) else high

    def _pair(self, value: int) -> None:
        """Run a neighbour of a value whose requests are like no other run's."""
        search, scaled = self._search, self._scaled
        for part in (0.02, 0):
            if value not in scaled.values or len(scaled.with_same_requests(value)) > 1:
                return
            away = max(int(value * part), search.step)
            near = search.nearest(value - away)
            search.try_value(near if near < value else search.nearest(value + away))

    def _is_known(self, low: int, high: int) -> bool:
        """Return whether the requests of most values can be replayed."""
        step = max((high - low) // SAMPLES // self._search.step, 1) * self._search.step
        values = range(low, high + 1, step)
        known = [v for v in values if self._scaled.fits(v, self._margins[0]) is not None]
        return len(known) * 2 > len(values)

    def _read(self, low: int, high: int) -> tuple[Band, list[int]]:
        """Return the band by runs and replays, and the values to be run."""
        search, scaled = self._search, self._scaled
        first = self._first_failing(low, high)
        best = self._last_fitting(low, high)
        safe, refused = best, None
        if first is not None:
            safe = self._before(first) if first > low else None
            refusals = (scaled.refused(first, margin) for margin in self._margins)
            refused = next(filter(None, refusals), None)
        band = Band(safe=safe, best=best, replayed=len(scaled.replayed), refused=refused)
        middle = None if safe is None else search.nearest((low + safe) // 2)
        after = None if best is None else search.nearest(best + search.step)
        critical = dict.fromkeys([safe, first, best, after, middle])
        return band, [v for v in critical if v is not None and v <= search.top]

    def _first_failing(self, low: int, high: int) -> int | None:
        """Return the first value that does not always fit, or None.

        Every so many values are tried, and then each below the first of these that fails, until
        `NEAR` of them fit.
        """
        step = self._search.step
        found = self._coarse_failing(low, high)
        if found is None:
            return None
        value, since = found - step, 0
        while value >= low and since < NEAR:
            since += 1
            if self._always_fits(value) is False:
                found, since = value, 0
            value -= step
        return found

    def _coarse_failing(self, low: int, high: int) -> int | None:
        values = self._grid(low, high)
        return next((v for v in values if self._always_fits(v) is False), None)

    def _last_fitting(self, low: int, high: int) -> int | None:
        """Return the last value that fits; None if none is known to."""
        while True:
            values = self._grid(low, high)
            found = next((v for v in reversed(values) if self._fits(v)), None)
            if found is None or values.step == self._search.step:
                ran = [v for v, fits in self._search.verdicts().items() if fits]
                return max([*ran, *([found] if found else [])], default=None)
            low, high = found, min(found + values.step - 1, high)

    def _grid(self, low: int, high: int) -> range:
        """Return the searched values of a range, or every so many of them."""
        step = self._search.step
        every = -(-((high - low) // step + 1) // SPREAD)
        return range(self._search.nearest(low), high + 1, every * step)

    def _fits(self, value: int) -> bool | None:
        """Return whether a value fits with the margin, as run or replayed."""
        ran = self._search.verdicts()
        return ran[value] if value in ran else self._scaled.fits(value, self._margins[0])

    def _always_fits(self, value: int, conf: str | None = None) -> bool | None:
        """Return whether a value fits, whatever of the margin is to be had."""
        fits = self._fits(value) if conf is None else True
        for margin in self._margins if fits else ():
            outcome = self._scaled.replay(value, margin, conf)
            if outcome is None:
                return fits if conf is None else None
            ran = conf is None and margin == self._margins[0] and value in self._search.verdicts()
            if not outcome.fits and not ran:
                return False
            if not outcome.retries:
                break  # more memory would change nothing
        return fits

    def _before(self, value: int) -> int:
        return self._search.nearest(value - self._search.step)
