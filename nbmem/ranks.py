"""A process that records itself as one rank of a world, into a folder where the others do the same.

Nothing is asked of other ranks, and no rank waits for another: they meet in the folder.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.core.entry import entry
from nbmem.core.world import Rank
from nbmem.files.folder import session_name

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.api import Trace
    from nbmem.record.journal import JournalWriter


class RankFolder:
    """The folder, as one rank writes into it.

    Args:
        folder: The folder; it is there.
        trace: What records this rank.
    """

    def __init__(self, folder: Path, trace: Trace) -> None:
        self._folder = folder
        self._trace = trace
        self._journal: JournalWriter | None = None
        self._begun_ns = time.time_ns()

    @entry("the rank's journal")
    def begin(self) -> None:
        """Write as the recording goes on; the trace has begun."""
        from nbmem.record.journal import JournalWriter

        if (recorder := self._trace.recorder) is not None:
            self._journal = JournalWriter(self._folder, self._trace.name, recorder)
            self._journal.start()

    def lost(self, part: str, err: BaseException) -> None:
        """Keep what went wrong."""
        self._trace.lost(part, err)

    def save(self) -> Path:
        """Write the session of the trace, which has ended; then the journal is not needed.

        Returns:
            The session's file.

        Raises:
            NbmemError: Nothing was recorded, or it cannot be written; the journal stays.
        """
        saved = False
        session = self._trace.session
        try:
            if session is not None and session.rank is None:
                session = replace(session, rank=self._alone(failed=session.error is not None))
                self._trace.session = session
            rank = session.rank if session is not None and session.rank else self._alone()
            path = self._trace.save(self._folder / session_name(rank))
            saved = True
        finally:
            if self._journal is not None:
                rank_or_none = None if session is None else session.rank
                error = None if session is None else session.error
                self._journal.stop(saved=saved, rank=rank_or_none, error=error)
        return path

    def _alone(self, *, failed: bool = False) -> Rank:
        """A program of one process is a world of one."""
        return Rank(
            number=0,
            world=1,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ns=self._begun_ns,
            ended_ns=time.time_ns(),
            ended="failed" if failed else "finished",
        )
