"""A virtual card: its allocator, its context and a process's memory on it."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.driver import DownwardDriver
from nbmem.allocator.heap import AllocatorOOM
from nbmem.allocator.settings import conf_of_environment
from nbmem.core.session.events import Action
from nbmem.virtual.frames import level_of_user
from nbmem.virtual.hardware.allocator_lock import LockedAllocator
from nbmem.virtual.hardware.cudnn.client import CudnnClient
from nbmem.virtual.hardware.current_stream import CurrentStream
from nbmem.virtual.hardware.deferred_free import defer_interrupt
from nbmem.virtual.hardware.forks import BAD_FORK
from nbmem.virtual.hardware.graphs import Pools
from nbmem.virtual.hardware.memory_history import History
from nbmem.virtual.hardware.oom import EXBIBYTE, TOO_MUCH, oom_message
from nbmem.virtual.hardware.stream_capture import StreamCapture
from nbmem.virtual.hardware.stream_timing import StreamTiming
from nbmem.virtual.hardware.workspaces import Workspaces
from nbmem.virtual.paging.accesses import AccessKind, AccessLog
from nbmem.virtual.warnings import limits_of, warn

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.block_uses import BlockUseLog
    from nbmem.virtual.hardware.eager_baseline import EagerEstimate

LAUNCH_QUEUE = 1024
"""Kernels that may wait on a stream before a launch blocks: what is older has finished. Counted in
allocations here, of which there are about as many."""

logger = logging.getLogger(__name__)


class CardDriver(DownwardDriver):
    """A driver whose free memory excludes the context and other processes."""

    __slots__ = ("_gpu",)

    def __init__(self, gpu: VirtualGPU) -> None:
        super().__init__(gpu.card.total_bytes, number=gpu.index)
        self._gpu = gpu

    @property
    def free_bytes(self) -> int:
        """Bytes of the card that are free; the context may grow on a full card."""
        return max(self._gpu.card.total_bytes - self._gpu.taken_outside - self.used, 0)

    def malloc(self, size: int) -> int | None:
        """Allocate `size` bytes; None if they do not fit."""
        return super().malloc(size) if size <= self.free_bytes else None

    def map(self, addr: int, size: int) -> bool:
        """Map memory into a part of a virtual range; False if it does not fit."""
        return size <= self.free_bytes and super().map(addr, size)


class VirtualGPU:
    """A virtual card, its allocations and the figures that it reports.

    Attributes:
        card: The kind of card.
        index: Its CUDA ordinal.
        release: The release of torch whose allocator rules apply.
        history: The memory history that `_record_memory_history` controls.
        dnn: The client that queries which kernels cuDNN would take.
        notes: Notes on what this card cannot do as the real one would, each once.
        other_processes: Bytes that other processes hold, by PID.
        lock: The lock for reads and changes of the state that threads share on a machine's cards.
        locked: The allocator, to be changed under the lock.
        library_bytes: Bytes that other libraries of this process hold, not through torch.
        on_storage_freed: The callback of a storage's weak reference, called with the reference.
        oom_observers: Called before an out-of-memory error is raised, as torch calls them.
        launched: Whether an operator was called since a capture began.
        rules: The differences between the releases of torch.
        eager_estimate: The estimate of eager mode's bytes for compiled regions; None: no estimate.
        access_log: The log of memory accesses; None: they are not logged.
        block_uses: The log of what operators use of blocks; None: there is none.
        initialized: Whether the program has used the card, so that a context exists.
        bad_fork: Whether this process was forked from one with a context, so that it can have none.
        chosen: Whether the user requested it; else it may only replace a missing real card.
    """

    def __init__(  # noqa: PLR0913 - what cards of one machine share comes from outside
        self,
        card: Card,
        *,
        release: str,
        index: int = 0,
        conf: str | None = None,
        other_processes: Mapping[int, int] | None = None,
        notes: list[str] | None = None,
        dnn: CudnnClient | None = None,
        lock: threading.RLock | None = None,
    ) -> None:
        self.card, self.index, self.release = card, index, release
        self.notes: list[str] = [] if notes is None else notes
        self.other_processes = dict(other_processes or {})
        self.library_bytes = 0
        self.oom_observers: list[Callable[[int, int, int, int], None]] = []
        self.initialized, self.bad_fork, self.chosen = False, False, True
        self._settings_are_set = conf is not None
        self.history = History(index)
        self._allocator = CachingAllocator(
            total_bytes=card.total_bytes,
            release=release,
            settings=conf or "",
            driver=CardDriver(self),
            on_event=self.history.on_event,
        )
        self.rules = self._allocator.rules
        self.workspaces = Workspaces(self)
        self.dnn = CudnnClient(card) if dnn is None else dnn
        self.pools = Pools(self)
        self.stream = CurrentStream(index)
        self.stream_timing = StreamTiming()
        self.capture = StreamCapture()
        self.launched, self._unfinished = False, 0
        self.access_log: AccessLog | None = None
        self.block_uses: BlockUseLog | None = None
        self.eager_estimate: EagerEstimate | None = None
        self.dropout_state: torch.Tensor | None = None
        self.uuid = uuid.uuid5(uuid.NAMESPACE_OID, f"nbmem {card.key} {index or ''}".rstrip())
        self.pci_bus = 0x17 + 0x11 * index
        self.locked = LockedAllocator(self, self._allocator, lock or threading.RLock())
        self.lock = self.locked.lock
        self.on_storage_freed = self.locked.on_storage_freed

    @property
    def allocator(self) -> CachingAllocator:
        """The simulated caching allocator, after all deferred frees.

        Several reads that belong together hold `lock`; changes go through `locked`.
        """
        return self.locked.flushed()

    @property
    def name(self) -> str:
        """The card's name as the driver reports it."""
        return self.card.name

    @defer_interrupt
    def take(self, size: int, stream: int | None = None) -> int:
        """Allocate on this thread's stream; return the address, 0 for 0 bytes.

        Raises:
            torch.OutOfMemoryError: With torch's message, after torch's own retries.
        """
        self.initialize()
        if size >= EXBIBYTE:
            raise torch.OutOfMemoryError(TOO_MUCH)
        handle = self.stream.handle if stream is None else stream
        # A signal between acquire and release would leave the card locked; `with` prevents that.
        with self.locked as allocator:
            if self._unfinished:
                self._finish_one()
            try:
                addr = allocator.malloc(size, handle)
            except AllocatorOOM as err:
                message = oom_message(self, err)
                capacity = self.card.total_bytes if err.limit is None else err.limit
                seen = (self.index, err.segment, capacity, err.free_bytes)
                # Its frames refer to the caller's: in a cycle they would hold tensors.
                err.__traceback__ = None
            else:
                if self.access_log is not None:
                    self.access_log.note(AccessKind.ALLOCATED, addr, size)
                return addr
        for observer in tuple(self.oom_observers):
            observer(*seen)
        raise torch.OutOfMemoryError(message)

    def _finish_one(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._allocator.complete_streams()

    def launch_unseen(self) -> None:
        """Record the launch of a kernel that is no operator.

        What it uses is not known.
        """
        self.launched = True
        if self.block_uses is not None:
            self.block_uses.complete = False

    def give(self, addr: int) -> None:
        """Free a block; safe in a finalizer that interrupts the allocator."""
        if addr:
            self.locked.free(addr)

    @defer_interrupt
    def record_stream(self, addr: int, stream: int) -> None:
        """Keep a block until another stream has finished its use of it.

        A program that never synchronises is at most a full launch queue ahead of the card.
        """
        with self.locked as allocator:
            allocator.record_stream(addr, stream)
            self._unfinished = self._unfinished or LAUNCH_QUEUE

    def initialize(self) -> None:
        """Create the CUDA context, unless it exists."""
        if self.initialized:
            return
        if self.bad_fork:
            raise RuntimeError(BAD_FORK)
        with self.lock:
            if self.initialized:
                return
            self.initialized = True
            self.read_environment()
        for sentence in limits_of(self.card):
            self.note(sentence)

    def read_environment(self) -> None:
        """Read the allocator's settings from the environment at the first use.

        Raises:
            UsageError: The text is one that torch refuses.
        """
        if self._settings_are_set:
            return
        with self.lock:
            if self._settings_are_set:
                return
            self._settings_are_set = True
            if conf := conf_of_environment():
                self.allocator.set_settings(conf)
                fraction = self.allocator.settings.per_process_memory_fraction
                if fraction is not None:
                    self.allocator.set_memory_fraction(fraction)

    @defer_interrupt
    def synchronize(self, stream: int | None = None, *, until: int | None = None) -> None:
        """Complete queued work, so that memory used by streams is freed.

        Args:
            stream: Handle of the stream whose sleep ends; None: of all streams. Work other than
                sleeps is complete at once on every stream.
            until: Time of the streams' clock to wait for instead; None for the end of the sleeps.
        """
        self.initialize()
        if until is None:
            self.stream_timing.wait(stream)
        else:
            self.stream_timing.wait_until(until)
        self.locked.schedule(CachingAllocator.complete_streams)

    @defer_interrupt
    def empty_cache(self) -> None:
        """Return cached segments to the driver."""
        if self.initialized:
            self.locked.schedule(CachingAllocator.complete_streams)
            self.locked.schedule(CachingAllocator.empty_cache)

    @property
    def fraction(self) -> float:
        """The fraction of the card's memory that this process may reserve."""
        self.read_environment()
        return self.allocator.fraction

    @property
    def nvml_used(self) -> int:
        """Bytes in use on the card, as NVML reports them."""
        return self.card.driver_bytes + self.taken_outside + self.allocator.reserved

    @property
    def taken_outside(self) -> int:
        """Bytes in use outside of this process's caching allocator."""
        unowned = self.card.unowned_with(self.initialized + len(self.other_processes))
        return (
            self.context_bytes + self.library_bytes + sum(self.other_processes.values()) + unowned
        )

    @property
    def context_bytes(self) -> int:
        """Bytes of the context and library handles; 0 before CUDA is used."""
        if not self.initialized:
            return 0
        return self.card.context_bytes + self.workspaces.handle_bytes

    @property
    def process_bytes(self) -> int:
        """Bytes that NVML reports for this process."""
        return self.context_bytes + self.library_bytes + self.allocator.reserved

    @property
    def free_bytes(self) -> int:
        """Free bytes, as cudaMemGetInfo reports them.

        The context may grow on a full card: then there are none.
        """
        return max(self.card.total_bytes - self.taken_outside - self.allocator.reserved, 0)

    def note(self, text: str) -> None:
        """Record and warn once per activation of a difference to a real card."""
        with self.lock:
            if text in self.notes:
                return
            self.notes.append(text)
        logger.info("%s", text)
        warn(text, level_of_user())

    def mark_snapshot(self) -> None:
        """Add the history entry that torch adds after copying a snapshot."""
        self.history.on_event(Action.SNAPSHOT, 0, self.allocator.active, 0)

    def __repr__(self) -> str:
        held = self.allocator.reserved
        return f"<VirtualGPU cuda:{self.index} {self.card.key}: {held} B reserved>"
