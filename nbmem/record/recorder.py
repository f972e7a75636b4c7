"""The recorder: watches one stretch of the user's run and freezes it into a Session.

It is a guest. Whatever fails inside is caught in one place, switched off and noted; the cell goes
on.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import NbmemError
from nbmem.probes import oom
from nbmem.probes.history import HistoryProbe
from nbmem.probes.holders import walk
from nbmem.probes.training import TrainingHooks
from nbmem.record.freeze import freeze
from nbmem.record.holders import matters
from nbmem.record.identities import IdentityLog
from nbmem.record.marks import MarkLog
from nbmem.record.program import ProgramLog
from nbmem.record.sampler import Sampler
from nbmem.record.turns import TurnLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nbmem.core.oom import Refusal
    from nbmem.core.session import Session
    from nbmem.probes.holders import Walk

logger = logging.getLogger("nbmem")

MAX_EVENTS = 1_000_000
"""The history's ring; older events are dropped, counted and noted."""
MAX_REFUSALS = 1_000
"""Out-of-memory errors of which line and layer are kept, the latest: a search makes many."""


class Recorder:
    """Records from `start` to `stop`.

    Args:
        device: The one card to trace; None for every card that torch uses.
        stacks: Take a Python stack at each allocation.
        namespace: The notebook's names, read at the start and the end only; None for none.
        virtual: Whether a virtual GPU answers (for the session's device info).
        max_events: Size of the history's ring.
    """

    def __init__(
        self,
        *,
        device: int | None = None,
        stacks: bool = False,
        namespace: Mapping[str, Any] | None = None,
        virtual: bool = False,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self.notes: list[str] = []
        self.virtual = virtual
        self.marks = MarkLog(device)
        self.identities = IdentityLog()
        self.program = ProgramLog()
        self.turns = TurnLog(self.marks, self.identities, self.program)
        self.blocks: list[tuple[str, int, int]] = []
        self.history = HistoryProbe(max_entries=max_events, stacks=stacks)
        self.sampler = Sampler(device, self.note)
        self.at_start: dict[str, Any] | None = None
        self.refusals: deque[Refusal] = deque(maxlen=MAX_REFUSALS)
        self._stop_listening: Callable[[], None] | None = None
        self.held: Walk | None = None
        self._namespace = namespace
        self._hooks = TrainingHooks(_Guarded(self.turns, self))
        self._open_blocks: list[tuple[str, int]] = []

    def start(self) -> None:
        """Begin. Never raises."""
        with self.guard("the memory history"):
            self.history.start()
        with self.guard("the layout at the start"):
            self.at_start = self.history.take()
        with self.guard("the counters"):
            self.marks.take()
        with self.guard("the names at the start"):
            self._see_everything()
        with self.guard("the readings of the whole card"):
            self.sampler.start()
        with self.guard("the hooks of the training loop"):
            self._hooks.install()
        with self.guard("the moments of out-of-memory errors"):
            self._stop_listening = oom.listen(self.refusals.append, self._namespace or {})

    def stop(self, name: str, error: str | None = None) -> Session:
        """End and freeze. Never raises.

        Args:
            name: Label of the recording.
            error: The exception that ended it, as text; None if it ended well.
        """
        with self.guard("the hooks of the training loop"):
            self._hooks.remove()
        if self._stop_listening is not None:
            self._stop_listening()
        while self._open_blocks:
            self.end_block()
        with self.guard("the names at the end"):
            self.marks.take()
            self._see_everything()
        with self.guard("who holds what"):
            if matters(self.marks, self.identities):
                mark = len(self.marks.t_ns) - 1
                self.held = walk(
                    self._namespace or {}, met=lambda found: self.identities.saved(mark, found)
                )
        at_end = None
        with self.guard("the counters"):
            self.marks.take()
        with self.guard("the memory history"):
            at_end = self.history.take() if self.history.recording else None
        with self.guard("the memory history"):
            self.history.stop()
        with self.guard("the readings of the whole card"):
            self.sampler.stop()
        return freeze(self, name, at_end, error)

    def so_far(self) -> Session:
        """What has been recorded up to now, while it goes on; never raises."""
        at_end = None
        with self.guard("the memory history"):
            self.marks.take()
            at_end = self.history.take() if self.history.recording else None
        return freeze(self, "so far", at_end, None)

    def begin_block(self, name: str) -> None:
        """Open a block of the user's own."""
        with self.guard("a block"):
            self._open_blocks.append((name, self.marks.take()))

    def end_block(self) -> None:
        """Close the innermost block."""
        with self.guard("a block"):
            name, begun = self._open_blocks.pop()
            self.blocks.append((name, begun, self.marks.take()))

    def interrupted(self) -> None:
        """An exception passed through the training loop: listen afresh."""
        with self.guard("the hooks of the training loop"):
            self._hooks.rearm()

    def note(self, sentence: str) -> None:
        """Keep a sentence for the report, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @contextlib.contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """Keep a fault of nbmem's out of the user's cell; leave one note."""
        try:
            yield
        except NbmemError as err:
            self.note(str(err))
        except Exception as err:
            self.note(f"nbmem lost {part}: {err!r}. The cell itself is not affected.")
            logger.debug("lost %s", part, exc_info=True)

    def _see_everything(self) -> None:
        from nbmem.probes.cuda import initialized_torch

        if initialized_torch() is not None:
            mark = len(self.marks.t_ns) - 1
            self.identities.everything(mark, self._namespace or {})


class _Guarded:
    """A listener whose methods cannot raise into the training loop; after a fault it is deaf."""

    def __init__(self, listener: TurnLog, recorder: Recorder) -> None:
        self._listener = listener
        self._recorder = recorder
        self._deaf = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._listener, name)

        def tell(*args: Any, **kwargs: Any) -> None:
            if self._deaf:
                return
            try:
                method(*args, **kwargs)
            except Exception as err:
                self._deaf = True
                self._recorder.note(
                    f"nbmem lost the phases from here on: {err!r} in {name}. "
                    "The cell itself is not affected."
                )
                logger.debug("lost the phases", exc_info=True)

        setattr(self, name, tell)
        return tell
