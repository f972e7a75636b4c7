"""Run `nbmem run` as one rank of a world, which saves into a folder.

Only rank 0 prints.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nbmem.capture.distributed.rank import rank_by_environment
from nbmem.core.errors import NbmemError, UsageError
from nbmem.core.files.atomic_write import new_folder
from nbmem.core.files.untrusted_input import is_folder
from nbmem.frontends.cli.subcommand import print_message
from nbmem.virtual import rank_messages

if TYPE_CHECKING:
    import argparse

    from nbmem.api.rank_recording import RankFolder
    from nbmem.api.tracing import Trace


class RankRun:
    """A run of a script that may be a rank of many.

    Args:
        options: Those of `nbmem run`.
        files: The files to be written, each checked; only rank 0 writes a report.

    Raises:
        UsageError: Every rank would write the same file.
        NotWrittenError: The folder cannot be made.
    """

    def __init__(self, options: argparse.Namespace, files: dict[str, Path]) -> None:
        rank = rank_by_environment(0)
        self._number = None if rank is None else rank.number
        self._folder: Path | None = None
        self._writes: RankFolder | None = None
        self._given = getattr(options, "save", None)
        if self._given is not None and is_folder(self._given):
            self._folder = new_folder(self._given)
        elif "save" in files and rank is not None and rank.world > 1:
            raise UsageError(
                f"{rank.world} ranks would write the one file {self._given}. Name a folder, with a "
                f"slash at its end: --save {Path(self._given or '').with_suffix('')}/"
            )

    @property
    def silent(self) -> bool:
        """True if another rank prints for all.

        A program may find out late that it is one of several ranks.
        """
        return bool(self._number)

    def begin(self, trace: Trace) -> None:
        """Start writing into the folder, if there is one.

        The trace has begun.
        """
        if self._folder is not None:
            from nbmem.api.rank_recording import RankFolder

            self._writes = RankFolder(self._folder, trace)
            self._writes.begin()

    def end(self, trace: Trace) -> bool:
        """Save this rank's session; return False if that fails."""
        if trace.session is not None and trace.session.rank is not None:
            self._number = trace.session.rank.number
        if self._writes is None:
            return True
        try:
            self._writes.save()
        except NbmemError as err:
            print_message(str(err))
            return False
        if not self.silent and rank_messages.folder() is None:
            print_message(
                f"the ranks write to {self._given}: `nbmem report {self._given}` reads them as one."
            )
        return True
