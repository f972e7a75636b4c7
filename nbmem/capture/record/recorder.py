"""Record one stretch of the user's run and build a Session from it.

Every hook is listed before it is installed, and `close` removes all of them in any case. What was
recorded is evaluated only then. A fault loses only the part in which it occurred, and leaves a
note.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nbmem.capture.distributed.collectives import Collectives
from nbmem.capture.heap import walk_in_pieces
from nbmem.capture.hooks import oom_observer
from nbmem.capture.hooks.training_hooks import TrainingHooks
from nbmem.capture.interpreter.busy_threads import threads_using_tensors
from nbmem.capture.interpreter.last_call import as_names
from nbmem.capture.record.card_sampler import Sampler
from nbmem.capture.record.collection_log import CollectionLog
from nbmem.capture.record.collective_log import CollectiveLog
from nbmem.capture.record.counter_samples import MAX_MARKS, CounterLog
from nbmem.capture.record.holder_columns import matters
from nbmem.capture.record.hook_event_log import MAX_TURNS, HookEventLog
from nbmem.capture.record.program_log import ProgramLog
from nbmem.capture.record.progress import LoopProgress, ProgressLog
from nbmem.capture.record.rank_log import RankLog
from nbmem.capture.record.session_builder import build_session
from nbmem.capture.record.tensor_labels import TensorLabelLog
from nbmem.capture.tensors.tensors import without_torch_function
from nbmem.capture.torch_cuda import (
    initialized_torch,
    is_higher,
    peaks_allocated,
    read_counters,
)
from nbmem.capture.torch_memory.allocator_history import (
    FIRST_ENTRIES,
    VIRTUAL_FIRST_ENTRIES,
    HistoryProbe,
)
from nbmem.capture.torch_memory.private_pools import pools_in, users_of
from nbmem.capture.torch_memory.tensorless_blocks import KNOWN_BLOCKS
from nbmem.core.errors import NbmemError
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.entry_points import clear_handled_tracebacks, fault_note
from nbmem.core.runtime.interrupts import hold_signals, reraise_if_from_signal
from nbmem.core.runtime.self_test import losses
from nbmem.core.session.engines import RULES
from nbmem.core.session.holders import HolderKind

if TYPE_CHECKING:
    from types import FrameType

    from nbmem.capture.heap import Walk
    from nbmem.capture.interpreter.last_call import LastCall
    from nbmem.capture.torch_memory.tensorless_blocks import BlocksInUse
    from nbmem.core.session.oom import Refusal
    from nbmem.core.session.session import Session

logger = logging.getLogger("nbmem")

MAX_EVENTS = 1_000_000
"""Size of the history's ring buffer; older events are dropped, counted and noted."""
MAX_REFUSALS = 1_000
"""Out-of-memory errors whose line and layer are recorded, the latest ones: a search causes many."""
RETRIES = 3
"""How often `close` is retried after a fault, so that the rest is removed as well."""
LITTLE = 0.1
"""Share of the bytes with a name that may lose it when a function returns: its variables are of no
importance then."""
MAX_NOTES = 100
"""Sentences that are retained; equal ones only once."""


BlockUseRows = Mapping[int, Sequence[tuple[int, int, int, int, int]]]
BlockUseReader = Callable[[], BlockUseRows]


@dataclass(frozen=True, slots=True)
class FunctionVariables:
    """The holders and facts before a function's variables were freed.

    Attributes:
        function: The function's name.
        sample: Index of the counter sample that was taken then.
        freed: That of the one behind their release.
        held: Who held what.
        facts: The program's facts then.
        peaks: The most that was allocated on each card until then.
        in_loop: Whether the function was called in a loop.
    """

    function: str
    sample: int
    freed: int
    held: Walk
    facts: dict[str, Any]
    peaks: Sequence[int] = ()
    in_loop: bool = False

    def is_known_by(self, later: Walk) -> bool:
        """Return whether later names say more.

        What came since is more than what has lost its name, or little has lost it.
        """
        then, now = _named(self.held), _named(later)
        lost = sum(size for where, size in then.items() if where not in now)
        new = sum(size for where, size in now.items() if where not in then)
        return new >= lost or lost < LITTLE * sum(then.values())


class Recorder:
    """Records from `start` to `close`.

    Args:
        device: The only card to trace; None for every card that torch uses.
        stacks: Take a Python stack at each allocation.
        namespace: The notebook's names (`names`), read only at the start and the end; None for
            none.
        engine: What a virtual GPU's figures come from (for the session's device info); empty on a
            real one.
        chosen: Whether the user selected the virtual GPU. Then the host's memory is not recorded,
            even if the card is not used.
        limits: Called at the end; returns sentences on what the card could not do as a real one
            would.
        watch_uses: Called at the start of a virtual card's recording; returns what is called at the
            end, which returns by card what operators did not use
            (`virtual.hardware.block_uses`).
        max_events: Size of the history's ring buffer.

    Attributes:
        engine, chosen: The arguments of that name.
        imitated: Whether nbmem's own allocator and history stand in for torch's.
        to_release: Installed parts that must still be removed, each with its release function.
        began_ns, ended_ns: The user's time, without nbmem's own at the start and the end; None
            before.
        interrupted: Whether Ctrl-C came during nbmem's own work; the caller delivers it.
    """

    def __init__(  # noqa: PLR0913 - each an option of its own, by name
        self,
        *,
        device: int | None = None,
        stacks: bool = False,
        namespace: Mapping[str, Any] | None = None,
        engine: str = "",
        chosen: bool = False,
        limits: Callable[[], Sequence[str]] = tuple,
        watch_uses: Callable[[], BlockUseReader] | None = None,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self.notes: list[str] = []
        self.engine = engine
        self.imitated = engine == RULES
        self.interrupted = False
        self.began_ns: int | None = None
        self.ended_ns: int | None = None
        self.chosen = chosen
        self._limits = limits
        self._watch_uses = watch_uses
        self._read_uses: BlockUseReader | None = None
        self.block_uses: BlockUseRows = {}
        self.counter_samples = CounterLog(device)
        self.tensor_labels = TensorLabelLog()
        self.program = ProgramLog()
        self.storage_log = self.tensor_labels.storage_log
        self.storage_log.on_fault = self.on_fault
        self.counter_samples.taken = self._sample_taken
        self.hook_events = HookEventLog(self.counter_samples, self.tensor_labels, self.program)
        self.collections = CollectionLog(
            self.counter_samples.cards, self.hook_events.others_in_backward
        )
        self.ranks = RankLog()
        self.hook_events.stepped = self.ranks.glance
        self._progress = ProgressLog(self.hook_events, self.tensor_labels, self.counter_samples)
        self.blocks: list[tuple[str, int, int]] = []
        self.history = HistoryProbe(max_entries=max_events, stacks=stacks, on_fault=self.on_fault)
        self.sampler = Sampler(device, self.note, self._card_read)
        self.at_start: dict[str, Any] | None = None
        self.at_end: dict[str, Any] | None = None
        self.pools: dict[int, str] = {}
        self.refusals: deque[Refusal] = deque(maxlen=MAX_REFUSALS)
        self.held: Walk | None = None
        self.before_return: FunctionVariables | None = None
        self.pauses: list[tuple[int, int]] = []
        self.facts: dict[str, Any] = {}
        self.names = {} if namespace is None else namespace  # an empty one may fill
        seen = CollectiveLog(self.hook_events, self.counter_samples, self.tensor_labels)
        collectives = Collectives(seen.holds, self.on_fault)
        self._hooks = TrainingHooks(
            self.hook_events,
            self.on_fault,
            collectives.parts,
            self.storage_log.of_host,
            self.tensor_labels.graphs.module_calls,
        )
        self._deafen: Callable[[], None] | None = None
        self.to_release: list[tuple[str, Callable[[], None]]] = []
        self._open_blocks: list[tuple[str, int]] = []

    _releases = False
    """Whether the next sample is behind the return of a function that was read."""

    # --- installation and removal

    def start(self) -> None:
        """Start the recording.

        A fault leaves a note. An interrupt is delivered after everything has been removed.
        """
        try:
            self._put_in("the memory history", self.history.start, self.history.stop)
            with self.guard("the layout at the start"):
                self.at_start = self.history.take()
                KNOWN_BLOCKS.recording_begins()
            with self.guard("the memory where no card is"):
                if not self.chosen:
                    self.storage_log.begin()
            with self.guard("the counters"):
                self.counter_samples.take()
            with self.guard("the names at the start"):
                for _ in self._see_everything("began"):
                    pass
            self._put_in("the readings of the whole card", self.sampler.start, self.sampler.stop)
            self._put_in("the hooks of the training loop", self._hooks.install, self._hooks.remove)
            self._put_in("what the garbage collector freed", self._watch, self.collections.stop)
            self._put_in("when memory was used", self._begin_uses, self._end_uses)
            for sentence in losses("recording"):
                self.note(sentence)
            part = "the moments of out-of-memory errors"
            self._put_in(part, self._listen, self._stop_listening)
            self.began_ns = CLOCK.time_ns()
        except BaseException:
            self.close()
            raise

    def ended_by(self, error: BaseException | None) -> None:
        """Register names of modules in the functions that an error has ended.

        No call has shown these modules. Nothing is retained.
        """
        if error is not None:
            with self._kept("the names at the error"):
                self.tensor_labels.owners.add_names_at_error(error)

    def close(self) -> None:
        """Take the last readings and remove whatever was installed.

        It never raises. One call is sufficient.
        """
        self.ended_ns = self.ended_ns or CLOCK.time_ns()
        for _ in range(RETRIES):
            try:
                with hold_signals() as held:
                    self._close()
                self.interrupted |= held.came
            except BaseException as err:  # noqa: BLE001 - in any case the rest must be removed
                with contextlib.suppress(BaseException):
                    self._on_fault("the end of the recording", err)
            else:
                return
        while self.to_release:
            _, release = self.to_release.pop()
            with contextlib.suppress(BaseException):
                release()

    def _close(self) -> None:
        if self.to_release:
            with self._kept("the hooks of the training loop"):
                self._hooks.remove()
            while self._open_blocks:
                self.end_block()
            with self._kept("what the virtual card could not do"):
                for sentence in self._limits():
                    self.note(sentence)
            with self._kept("which rank it was"):
                self.ranks.update()
            with self._kept("the counters"):
                self.storage_log.ask_all()
                self.counter_samples.take()
            with self._kept("the memory history"):
                self.at_end = self.history.take() if self.history.recording else None
            self._end_uses()
            with self._kept("the pools in use"):
                self.pools = users_of(pools_in(self.at_end or {}), self.names)
        while self.to_release:
            part, release = self.to_release[-1]
            for _ in range(RETRIES):
                try:
                    release()
                    break
                except BaseException as err:  # noqa: BLE001 - a fault may be temporary
                    self._on_fault(part, err)
            self.to_release.pop()

    def _put_in(self, part: str, begin: Callable[[], None], release: Callable[[], None]) -> None:
        self.to_release.append((part, release))
        with self.guard(part):
            begin()

    def _sample_taken(self, sample: int) -> None:
        self.storage_log.at_sample(sample)
        if self._releases and self.before_return is not None:
            self._releases = False
            self.before_return = replace(self.before_return, freed=sample)
        most = VIRTUAL_FIRST_ENTRIES if self.imitated else FIRST_ENTRIES
        if self.history.takes_first_stacks and self.counter_samples.entries >= most:
            self.history.end_stacks()

    def _card_read(self) -> None:
        """Do what the sampler's thread does with each reading.

        A loop without modules takes no counter samples. The history of nbmem's own allocator must
        not change while another thread adds to it.
        """
        self.storage_log.read()
        if self.history.takes_first_stacks and not self.imitated:
            read = (read_counters(card) for card in self.counter_samples.cards())
            now = max((one.actions for one in read if one is not None), default=0)
            if (
                now
                - max(
                    map(self.counter_samples.before_first, self.counter_samples.cards()), default=0
                )
                >= FIRST_ENTRIES
            ):
                self.history.end_stacks()

    def _watch(self) -> None:
        self.collections.start(partial(self.on_fault, "what the garbage collector freed"))

    def _begin_uses(self) -> None:
        if self._watch_uses is not None:
            self._read_uses = self._watch_uses()

    def _end_uses(self) -> None:
        with self._kept("when memory was used"):
            if self._read_uses is not None:
                read, self._read_uses = self._read_uses, None
                self.block_uses = read()

    def _listen(self) -> None:
        self._deafen = oom_observer.listen(self.refusals.append, self.names, self.on_fault)

    def _stop_listening(self) -> None:
        if self._deafen is not None:
            self._deafen()

    # --- what is read when the user's code has ended

    def record_before_return(self, call: LastCall) -> None:
        """Record what a function's variables hold, then free them.

        Faults leave a note; an interrupt passes. The recording goes on.

        Args:
            call: The call of the function, which has returned or failed. Its frame is taken.
        """
        frame, call.frame = call.frame, None
        if frame is None:
            return
        begun_ns = CLOCK.time_ns()
        frames = [*call.inner, frame]
        del frame
        call.inner.clear()
        if self._read_variables(frames):
            self.record_release()
        self.pauses.append((begun_ns, CLOCK.time_ns()))

    def record_variables(self, frames: list[FrameType], *, in_loop: bool = False) -> bool:
        """Record what the variables of running functions hold.

        The first of them returns. Faults leave a note; an interrupt passes. Returns whether that
        says more than what was recorded before.

        Args:
            frames: The functions' frames, the innermost first. They are taken.
            in_loop: Whether the first is called in a loop.
        """
        begun_ns = CLOCK.time_ns()
        says_more = self._read_variables(frames, in_loop=in_loop)
        self.pauses.append((begun_ns, CLOCK.time_ns()))
        return says_more

    def record_release(self) -> None:
        """Record that the function has returned."""
        with self.guard("the variables of a function"):
            self.storage_log.ask_all()
            self.counter_samples.take()

    def _read_variables(self, frames: list[FrameType], *, in_loop: bool = False) -> bool:
        """Record what variables hold; return whether that says more."""
        names, then, known = self.names, None, self.before_return
        peaks = peaks_allocated()
        with self.guard("the variables of a function"), as_names(frames, names) as (added, owned):
            function = frames[0].f_code.co_name
            callers = [
                {"function": one.f_code.co_name, "variables": variables}
                for one, variables in zip(frames[1:], owned[1:], strict=True)
            ]
            self.names = {**names, **added}
            try:
                then = self._before_return(function)
            finally:
                self.names = names
        frames.clear()
        if then is None:
            return False
        same_peak = known is not None and not is_higher(peaks, known.peaks)
        if known is not None and same_peak and not known.is_known_by(then.held):
            return False
        facts = then.facts | ({"callers": callers} if callers else {})
        facts |= {"in_loop": True} if in_loop else {}
        self.before_return = replace(then, facts=facts, peaks=peaks, in_loop=in_loop)
        self._releases = True
        return True

    def _before_return(self, function: str) -> FunctionVariables | None:
        self.storage_log.ask_all()
        sample = self.counter_samples.take()
        if not matters(self.counter_samples, self.tensor_labels, self.storage_log):
            return None
        for _ in self._see_everything("ended"):
            pass
        with self._alone("ended") as alone:
            facts = self._facts() if alone else {}
        layout = self.history.take() if self.history.recording else None
        walk = self._walk(KNOWN_BLOCKS.at_end(layout))
        while True:
            try:
                next(walk)
            except StopIteration as ended:
                held: Walk = ended.value
                facts |= _bounds(held)
                return FunctionVariables(function, sample, sample, held, facts)

    def _facts(self) -> dict[str, Any]:
        freed = self.collections.freed
        return self.program.facts(self.tensor_labels, self.names, cycles=freed)

    def record_names_and_holders(self) -> Iterator[float | None]:
        """Record the notebook's names and the holders of memory, in pieces.

        Any piece may be the last one. The user's code may run between two pieces, unless it uses
        tensors: the caller stops before that. Yields the seconds of a piece that will be long, else
        None.
        """
        with self._kept("the names at the end"):
            yield from self._see_everything("ended")
        with self._kept("what the program is made of"), self._alone("ended") as alone:
            if alone:
                self.facts = self._facts()
        yield None
        with self._kept("who holds what"):
            yield from self._walk_heap()

    def _walk_heap(self) -> Iterator[float]:
        if matters(self.counter_samples, self.tensor_labels, self.storage_log):
            self.held = yield from self._walk(KNOWN_BLOCKS.at_end(self.at_end))
            self.facts |= _bounds(self.held)
            then = self.before_return
            if then is not None and then.in_loop and then.is_known_by(self.held):
                self.before_return = None

    def _walk(self, in_use: BlocksInUse | None) -> Generator[float, None, Walk]:
        sample = len(self.counter_samples.t_ns) - 1

        def read_graphs(graphs: Iterable[Any]) -> None:
            with self.storage_log.dating_back_to(self.hook_events.last_open_forward()):
                self.tensor_labels.saved(sample, graphs)

        pieces = walk_in_pieces(
            self.names,
            met=read_graphs,
            in_use=in_use,
            suspects=self.tensor_labels.owners.live_objects,
        )
        held: Walk | None = None
        while held is None:
            with self.hook_events.alone(), self.storage_log.without_additions():
                try:
                    coming = next(pieces)
                except StopIteration as ended:
                    coming, held = 0.0, ended.value
            yield coming
        if held.hindered:
            self._note_at_work(held.hindered, "ended")
        self.tensor_labels.graphs.deep |= held.deep
        return held

    def freeze(self, name: str, error: str | None = None, notes: Sequence[str] = ()) -> Session:
        """Return what was recorded as a session.

        It never raises. `close` must have been called before.

        Args:
            name: Label of the recording.
            error: The exception that ended it, as text; None if it ended well.
            notes: Further notes after the recorder's own.
        """
        with hold_signals() as held:
            if self.hook_events.dropped or self.counter_samples.full:
                self.note(
                    f"This recording is longer than {MAX_TURNS} changes of phase and {MAX_MARKS} "
                    "readings: phases are told apart in its latest part only, and steps are "
                    "counted from there."
                )
            if self.hook_events.unheard:
                self.note(
                    f"{self.hook_events.unheard} changes of phase were missed, because "
                    "another thread "
                    "trained at the same moment; phases may be longer than they were."
                )
            session = build_session(self, name, self.at_end, error)
        self.interrupted |= held.came
        return replace(session, notes=(*session.notes, *notes))

    def so_far(self) -> Session:
        """Return what has been recorded so far, while the recording goes on.

        It never raises.
        """
        at_end = None
        with self.hook_events.alone():  # other threads would report events without a sample
            with self.guard("the memory history"):
                self.counter_samples.take()
                at_end = self.history.take() if self.history.recording else None
                self.pools = users_of(pools_in(at_end or {}), self.names)
            return build_session(self, "so far", at_end, None)

    def progress(self) -> LoopProgress:
        """Return the loop's progress and the known bytes.

        Another thread may call this while the recording runs.
        """
        return self._progress.now()

    # --- blocks of the user's own

    def begin_block(self, name: str) -> None:
        """Open a block of the user's own."""
        with self.guard("a block"):
            self._open_blocks.append((name, self.counter_samples.take()))

    def end_block(self) -> None:
        """Close the innermost block."""
        with self.guard("a block"):
            name, begun = self._open_blocks.pop()
            self.blocks.append((name, begun, self.counter_samples.take()))

    # --- faults

    def note(self, sentence: str) -> None:
        """Add a sentence to the report's notes, once."""
        if sentence not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(sentence)

    def on_fault(self, part: str, err: BaseException) -> None:
        """Note a fault of nbmem's own, and the part that is lost by it."""
        self.note(str(err) if isinstance(err, NbmemError) else fault_note(part, err))

    @contextlib.contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """Turn a fault of nbmem's in the block into a note; interrupts pass.

        The user's cell never receives such a fault.
        """
        try:
            yield
        except Exception as err:  # noqa: BLE001 - the user's cell must not fail
            reraise_if_from_signal(err)
            self._on_fault(part, err)
            clear_handled_tracebacks(err)

    @contextlib.contextmanager
    def _kept(self, part: str) -> Iterator[None]:
        """Turn a fault or an interrupt in the block into a note.

        An interrupt loses only this part, and is delivered at the end.
        """
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as err:  # noqa: BLE001 - the following parts must run
            self._on_fault(part, err)
            clear_handled_tracebacks(err)

    def _on_fault(self, part: str, err: BaseException) -> None:
        if isinstance(err, KeyboardInterrupt):
            self.interrupted = True
            self.note(f"Interrupted: nbmem left out {part}.")
        else:
            self.on_fault(part, err)
            logger.debug("lost %s", part, exc_info=err)

    # --- names

    def _see_everything(self, when: str) -> Iterator[None]:
        """Record what the notebook names, as far as no other thread uses it."""
        if initialized_torch() is None and self.storage_log.registry is None:
            return
        self.tensor_labels.owners.add_names(self.names)
        sample = len(self.counter_samples.t_ns) - 1
        seen = self.tensor_labels.record_everything(
            sample, self.names, self.hook_events.own_loop_number()
        )
        while True:
            with self._alone(when) as alone:
                if not alone or next(seen, _OVER) is _OVER:
                    return
            yield

    @contextlib.contextmanager
    def _alone(self, when: str) -> Iterator[bool]:
        """Yield whether tensors may be read in the block.

        No other thread may be using tensors, or begin to use them.
        """
        with (
            self.hook_events.alone() as alone,
            without_torch_function(),
            self.storage_log.following(),
        ):
            others = threads_using_tensors()
            if others or not alone:
                self._note_at_work(others, when)
            yield alone and not others

    def _note_at_work(self, threads: Sequence[str], when: str) -> None:
        named = ", ".join(repr(name) for name in threads[:3]) or "Another thread"
        self.note(
            f"{named} may have been using tensors when this {when}, so nbmem left them alone: only "
            "what each thread's own calls showed has names. Let such threads end before."
        )


def _named(walk: Walk) -> dict[tuple[int, int, int], int]:
    """Return the bytes that variables hold, by place."""
    return {
        (device, held.addr, held.size): held.size
        for device, found in walk.by_device.items()
        for held in found
        if held.holders[0].kind < HolderKind.FRAME
    }


def _bounds(held: Walk) -> dict[str, Any]:
    """Return containers with a limit as a fact; empty without any."""
    return (
        {"bounds": [[path, *sizes] for path, sizes in held.bounds.items()]} if held.bounds else {}
    )


_OVER = object()
