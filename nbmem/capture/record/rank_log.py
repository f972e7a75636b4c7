"""Find out which rank a recording belongs to.

This is done while the program runs, since it may leave its process group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.capture.distributed.rank import card_now, groups_now, rank_by_environment, rank_by_torch
from nbmem.core.runtime.clock import CLOCK

if TYPE_CHECKING:
    from nbmem.core.session.ranks import Rank

_EXITS = {"SystemExit", "SystemExit: 0", "SystemExit: None"}
"""Exceptions with which a program reports success."""


class RankLog:
    """Rank of this process, as it was found last.

    What torch.distributed reports takes precedence over the environment, which a program may
    ignore.

    Attributes:
        rank: None while there is no sign of a rank.
    """

    def __init__(self) -> None:
        self.rank: Rank | None = None
        self._started_ns = CLOCK.time_ns()
        self._by_torch = False
        self._groups = 0

    def glance(self) -> None:
        """Update the rank if the process groups have changed; from any thread.

        A short program may destroy them before the next regular update.
        """
        groups = groups_now()
        if groups != self._groups:
            self._groups = groups
            self.update()

    def update(self) -> Rank | None:
        """Update the rank and return it; from any thread."""
        found = rank_by_torch(self._started_ns)
        if found is not None:
            before = self.rank
            # A group that is being destroyed has lost its mesh before its rank.
            kept = before.mesh if before is not None and not found.mesh else found.mesh
            self.rank, self._by_torch = replace(found, mesh=kept), True
        elif not self._by_torch:
            self.rank = rank_by_environment(self._started_ns)
        elif self.rank is not None:
            self.rank = replace(self.rank, card=card_now() or self.rank.card)
        return self.rank

    def ended(self, error: str | None) -> Rank | None:
        """Return the rank at the end of its recording, or None without one.

        Args:
            error: The exception that ended the recording, as text; or None.
        """
        if self.rank is None:
            return None
        failed = error is not None and error not in _EXITS
        return replace(
            self.rank, ended="failed" if failed else "finished", ended_ns=CLOCK.time_ns()
        )
