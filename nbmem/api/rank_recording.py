"""Record a process as one rank of a world, into a shared folder.

Ranks send no requests and do not wait for each other; they only share the folder.

    mp.spawn(nbmem.recorded(train, "runs/today/"), nprocs=4)
    notebook_launcher(nbmem.recorded(train, "runs/today/"), num_processes=4)
    TorchTrainer(nbmem.recorded(train_func, "/shared/runs/today/"), scaling_config=...)
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import NbmemError, UsageError
from nbmem.core.files.atomic_write import new_folder
from nbmem.core.files.rank_folder import session_name
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.entry_points import entry
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.session.ranks import Rank

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.api.tracing import Trace
    from nbmem.capture.record.rank_journal_writer import JournalWriter


WRITTEN: deque[Path] = deque(maxlen=8)
"""Folders into which functions of this process let ranks write, the latest ones; a live view of
ranks reads them."""


class RankFolder:
    """A folder of ranks into which this process writes as one.

    Args:
        folder: The folder; it exists.
        trace: The trace that records this rank.
    """

    def __init__(self, folder: Path, trace: Trace) -> None:
        self._folder = folder
        self._trace = trace
        self._journal: JournalWriter | None = None
        self._begun_ns = CLOCK.time_ns()

    @entry("the rank's journal")
    def begin(self) -> None:
        """Start the journal; the trace has begun."""
        from nbmem.capture.record.rank_journal_writer import JournalWriter

        if (recorder := self._trace.recorder) is not None:
            self._journal = JournalWriter(self._folder, self._trace.name, recorder)
            self._journal.start()

    def on_fault(self, part: str, err: BaseException) -> None:
        """Record what went wrong."""
        self._trace.on_fault(part, err)

    def save(self) -> Path:
        """Save the session of the ended trace, and drop the journal.

        Returns:
            The session's file.

        Raises:
            NbmemError: Nothing was recorded, or it cannot be written; the journal remains.
        """
        from nbmem.api.render import save

        saved, session = False, self._trace.session
        rank = session.rank if session is not None else None
        own = None if self._journal is None else self._journal.own_peak
        try:
            if session is None:
                self._trace.report()  # gives the reason why there is none
                raise UsageError(f"{self._trace.name!r} has no session to be saved.")
            if rank is None:
                rank = self._alone(failed=session.error is not None)
            rank = replace(rank, own_peak=own)
            whole = replace(session, rank=rank)
            path = save(whole, self._folder / session_name(rank), self._trace.report)
            saved = True
        finally:
            if self._journal is not None:
                error = None if session is None else session.error
                self._journal.stop(saved=saved, rank=rank, error=error)
        return path

    def end(self, error: BaseException | None) -> Path:
        """End the trace and save it; errors as of `save`."""
        self._trace.stop(error)
        return self.save()

    def _alone(self, *, failed: bool = False) -> Rank:
        """Return the rank of a program of one process: a world of one."""
        return Rank(
            number=0,
            world=1,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ns=self._begun_ns,
            ended_ns=CLOCK.time_ns(),
            ended="failed" if failed else "finished",
        )


class Recorded:
    """A function that records each process that calls it as a rank.

    It behaves as before and returns the same result. It can be pickled if the function can: spawned
    processes receive it by pickle.

    Args:
        function: The function that each rank calls.
        folder: Where the ranks write; it exists.
        gpu: The virtual card of each process; None for the machine's own.
        stacks: Take a Python stack at each allocation.
    """

    def __init__(
        self, function: Callable[..., Any], folder: Path, *, gpu: str | None, stacks: bool
    ) -> None:
        functools.update_wrapper(self, function)  # its signature, for callers that inspect it
        self._function = function
        self._folder = folder
        self._gpu = gpu
        self._stacks = stacks
        self._made_in = os.getpid()

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function and save this process's session."""
        writes = self._begin()
        error: BaseException | None = None
        try:
            return self._function(*args, **options)
        except BaseException as err:
            error = err
            raise
        finally:
            if writes is not None:
                _end(writes, error)
            del error

    @entry("this process's recording")
    def _begin(self) -> RankFolder | None:
        from nbmem.api import device_selection, tracing

        if os.getpid() != self._made_in:
            tracing.close_inherited_recording()
        if self._gpu is not None:
            device_selection.use(self._gpu, defer=True)
        name = str(getattr(self._function, "__name__", "ranks"))
        writes = RankFolder(self._folder, tracing.trace(name, stacks=self._stacks).start())
        writes.begin()
        return writes

    @staticmethod
    def on_fault(_part: str, err: BaseException) -> None:
        """Print what went wrong: there is no report that could have it."""
        _print_note(f"this process is not recorded: {error_of(err)}")


def recorded(
    function: Callable[..., Any],
    folder: str | Path,
    *,
    gpu: str | None = None,
    stacks: bool = False,
) -> Recorded:
    """Wrap a function so that each calling process records itself.

    Each process is a rank, and all of them write into one folder. Use it for launchers that take a
    function: `torch.multiprocessing.spawn`, accelerate's `notebook_launcher`, Ray's `TorchTrainer`.
    `nbmem.open(folder)` reads the folder as one world.

    Args:
        function: The function that each rank calls.
        folder: Where the ranks write; created if needed. All of them must have access to it.
        gpu: A virtual card for each process ("H100"); None for the machine's own.
        stacks: Take a Python stack at each allocation (dearer; names the lines).

    Raises:
        NotWrittenError: The folder cannot be made.
    """
    place = new_folder(folder).absolute()
    if place not in WRITTEN:
        WRITTEN.append(place)
    return Recorded(function, place, gpu=gpu, stacks=stacks)


def _end(writes: RankFolder, error: BaseException | None) -> None:
    """Save the session; the caller goes on as it would without nbmem."""
    try:
        writes.end(error)
    except NbmemError as err:
        _print_note(str(err))
    except Exception as err:  # noqa: BLE001 - a fault of nbmem must not stop the user's program
        _print_note(f"this process's recording was lost: {error_of(err)}")


def _print_note(sentence: str) -> None:
    sys.stderr.write(f"nbmem: {sentence}\n")
