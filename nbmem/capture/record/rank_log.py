"""Which rank a recording is of: looked for while it runs, since a program may leave its group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.capture.distributed.rank import card_now, groups_now, rank_by_environment, rank_by_torch
from nbmem.core.runtime.clock import CLOCK

if TYPE_CHECKING:
    from nbmem.core.session.ranks import Rank

_EXITS = {"SystemExit", "SystemExit: 0", "SystemExit: None"}
"""Exceptions with which a program says that all is well."""


class RankLog:
    """The rank of this process, as it was seen last.

    What torch.distributed says counts more than the environment, which a program may ignore.

    Attributes:
        rank: None as long as nothing says that there is one.
    """

    def __init__(self) -> None:
        self.rank: Rank | None = None
        self._started_ns = CLOCK.time_ns()
        self._by_torch = False
        self._groups = 0

    def glance(self) -> None:
        """Look if the groups are others than at the last glance; from any thread.

        A short program may have taken them down before anybody looks again.
        """
        groups = groups_now()
        if groups != self._groups:
            self._groups = groups
            self.look()

    def look(self) -> Rank | None:
        """Look again; from any thread."""
        found = rank_by_torch(self._started_ns)
        if found is not None:
            before = self.rank
            # A group that is being taken down has lost its mesh before its rank.
            kept = before.mesh if before is not None and not found.mesh else found.mesh
            self.rank, self._by_torch = replace(found, mesh=kept), True
        elif not self._by_torch:
            self.rank = rank_by_environment(self._started_ns)
        elif self.rank is not None:
            self.rank = replace(self.rank, card=card_now() or self.rank.card)
        return self.rank

    def ended(self, error: str | None) -> Rank | None:
        """The rank at the end of its recording, given the exception that ended it, as text."""
        if self.rank is None:
            return None
        failed = error is not None and error not in _EXITS
        return replace(
            self.rank, ended="failed" if failed else "finished", ended_ns=CLOCK.time_ns()
        )
