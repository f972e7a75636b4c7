"""Log what other frameworks of this process held while a cell ran.

Impossible readings are omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nbmem.capture.frameworks.readings import FrameworkQueries
from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.frameworks import FrameworkReadings, Share

MAX_ROWS = 36_000
"""Rows of a card; at this number every second reading is dropped, as for the card itself."""
STRIKES = 3
"""Consecutive impossible readings: a single one may have been taken during a change."""


class FrameworkLog:
    """Queries other frameworks beside each reading of a card.

    Only changes are stored.

    Args:
        note: Called with one sentence for each omitted framework.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._owners = FrameworkQueries(note)
        self._rows: dict[int, list[tuple[int, dict[str, Share]]]] = {}
        self._strikes: dict[str, int] = {}

    def read(self, device: int) -> tuple[Share, ...]:
        """Return what each framework reports to hold of a card, by CUDA ordinal."""
        return self._owners.read(device)

    def give_up(self) -> str | None:
        """Return a sentence about a framework whose query hangs just now.

        Returns None if no query is running.
        """
        return self._owners.disable_hanging()

    def add(self, device: int, t_ns: int, shares: tuple[Share, ...], most: int | None) -> None:
        """Store a reading of all frameworks.

        A share that exceeds `most` is replaced by the last possible one, or omitted. After STRIKES
        such readings in a row its framework is reported as doubtful.

        Args:
            device: CUDA ordinal.
            t_ns: When the card was read with it, nanoseconds since the epoch.
            shares: What the frameworks reported.
            most: Bytes that they can hold together; None if unknown.
        """
        rows = self._rows.setdefault(device, [])
        last = rows[-1][1] if rows else {}
        now: dict[str, Share] = {}
        for share in shares:
            if most is None or share.held <= most:
                now[share.name] = share
                most = None if most is None else most - share.held
                self._strikes.pop(share.name, None)
            else:
                self._doubt(share, most, now, last)
        if now != last:
            rows.append((t_ns, now))
        if len(rows) > MAX_ROWS:
            del rows[1:-1:2]

    def _doubt(
        self, share: Share, most: int, now: dict[str, Share], last: Mapping[str, Share]
    ) -> None:
        self._strikes[share.name] = self._strikes.get(share.name, 0) + 1
        if self._strikes[share.name] >= STRIKES:
            self._owners.doubt(share, most)
        elif share.name in last and last[share.name].held <= most:
            now[share.name] = last[share.name]

    def readings(self, device: int, names: dict[str, int]) -> FrameworkReadings:
        """Return one card's rows.

        `names` collects their texts and maps them to indices. A framework that no longer holds
        anything has a row of zeros.
        """
        rows: list[tuple[int, ...]] = []
        last: dict[str, Share] = {}
        for when, now in self._rows.get(device, ()):
            gone = {name: Share(name=name, held=0, used=0) for name in last.keys() - now.keys()}
            for name, share in sorted({**now, **gone}.items()):
                if share != last.get(name):
                    in_use = NOT_KNOWN if share.used is None else share.used
                    index = names.setdefault(name, len(names))
                    rows.append((when, index, share.held, in_use, share.managed))
            last = now
        return FrameworkReadings.from_rows(rows)
