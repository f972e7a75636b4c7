"""The allocator's memory history, as torch records and snapshots it.

`_record_memory_history` controls it and `_snapshot` returns it.

Events are columns. A tuple for each event would count as an object for Python's collector. The
columns hold integers, texts and stacks of torch's, which the collector does not track.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nbmem.core.runtime.clock import CLOCK
from nbmem.core.session.events import Action
from nbmem.virtual.hardware.stacks import capture_stack, symbolized

if TYPE_CHECKING:
    from torch._C._profiler import CapturedTraceback

    from nbmem.virtual.hardware.deferred_free import FreeContext

    Entry = tuple[Action, int, int, int, int, str, CapturedTraceback | None]


class EventRing(NamedTuple):
    """The columns of the ring, one value per event, oldest first.

    Attributes:
        action: What the allocator did.
        addr: The address.
        size: Bytes.
        stream: The stream.
        time_us: When, microseconds since the epoch.
        label: The text that the thread had set for its allocations.
        stack: Where; None where no stack was wanted.
    """

    action: deque[Action]
    addr: deque[int]
    size: deque[int]
    stream: deque[int]
    time_us: deque[int]
    label: deque[str]
    stack: deque[CapturedTraceback | None]

    def add(self, *entry: Any) -> None:
        """Append one event and drop the oldest one if the ring is full."""
        for column, value in zip(self, entry, strict=True):
            column.append(value)  # type: ignore[attr-defined]

    def entries(self) -> Iterator[Entry]:
        """Return an iterator over a copy of the events, oldest first."""
        return zip(*[tuple(column) for column in _columns(self)], strict=True)


def ring_of(most: int, kept: EventRing | None = None) -> EventRing:
    """Create a ring of at most `most` events, with another ring's newest."""
    columns = [()] * len(EventRing._fields) if kept is None else _columns(kept)
    return EventRing._make(deque(column, maxlen=most) for column in columns)


def _columns(ring: EventRing) -> tuple[deque[Any], ...]:
    return tuple(ring)


_NAMES: dict[Action, str] = {
    Action.ALLOC: "alloc",
    Action.FREE_REQUESTED: "free_requested",
    Action.FREE_COMPLETED: "free_completed",
    Action.SEGMENT_ALLOC: "segment_alloc",
    Action.SEGMENT_FREE: "segment_free",
    Action.SEGMENT_MAP: "segment_map",
    Action.SEGMENT_UNMAP: "segment_unmap",
    Action.OOM: "oom",
    Action.SNAPSHOT: "snapshot",
}
_TAKES = frozenset({Action.ALLOC, Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM})
"""What has a stack below "all" (maybeGatherContext in torch's allocator)."""
_CONTEXTS = (None, "state", "alloc", "all")
_NO_TASK = -1


def _nothing(**_wanted: bool) -> None:
    """Do nothing: the default callback."""


class _Label(threading.local):
    text = ""


_label = _Label()
"""The text that a thread set for its allocations, on whichever card (a static of torch's, too)."""


class History:
    """The event ring and the allocation stacks of live blocks.

    Attributes:
        enabled: None, "state" or "all", as torch names it.
        flush: Called before a change here, to record the deferred frees first.
        record_stacks: Called with `wanted`: whether the stacks of frees are recorded.
        deferred_free: The time.time_ns() and the stack of the deferred free that is recorded next;
            None for the present time and stack.
        ring: The newest events.
    """

    def __init__(self, device: int = 0) -> None:
        self.enabled: str | None = None
        self.ring = ring_of(0)
        self._notes: deque[int | str] = deque(maxlen=0)  # name, stage, time of each, one by one
        self.live: dict[int, CapturedTraceback] = {}
        self.deferred_free: FreeContext | None = None
        self.flush: Callable[[], None] = _nothing
        self.record_stacks: Callable[..., None] = _nothing
        self._device = device
        self._context = 0
        self._cpp = False
        self._skip: frozenset[str] = frozenset()

    def configure(  # noqa: PLR0913 - torch's
        self,
        enabled: str | None,
        context: str | None,
        max_entries: int,
        *,
        cpp: bool,
        clear: bool,
        skip: list[str],
    ) -> None:
        """Turn recording on or off, as torch._C._cuda_record_memory_history does."""
        self.flush()
        self._context = _CONTEXTS.index(context) if enabled is not None else 0
        self._cpp = cpp
        self._skip = frozenset(skip)
        limit = 1 if enabled == "state" else min(max_entries, sys.maxsize // 3)
        goes_on = self.enabled is not None and not clear
        if enabled is not None:
            self.ring = ring_of(limit, self.ring if goes_on else None)
            self._notes = deque(self._notes if goes_on else (), maxlen=3 * limit)
        if clear or enabled is None:
            self.live.clear()
        self.enabled = enabled
        self.record_stacks(wanted=_CONTEXTS[self._context] == "all")

    @property
    def label(self) -> str:
        """The user metadata that this thread set for its allocations."""
        return _label.text

    @label.setter
    def label(self, text: str) -> None:
        self.flush()
        _label.text = text

    def on_event(self, action: Action, addr: int, size: int, stream: int) -> None:
        """Record one action of the allocator."""
        if self.enabled is None or _NAMES[action] in self._skip:
            return
        level = self._context
        frames: CapturedTraceback | None = None
        if level and (level == 3 or action in _TAKES) and action is not Action.SNAPSHOT:
            frames = (
                capture_stack(cpp=self._cpp)
                if self.deferred_free is None
                else self.deferred_free.where
            )
        if action is Action.ALLOC and frames is not None:
            self.live[addr] = frames
        elif action is Action.FREE_COMPLETED:
            self.live.pop(addr, None)
        shown = frames if level >= 2 else None
        label = "" if in_engine() else _label.text
        now = (CLOCK.time_ns() if self.deferred_free is None else self.deferred_free.t_ns) // 1000
        self.ring.add(action, addr, size, stream, now, label, shown)

    def annotate(self, name: str, stage: str) -> None:
        """Record the start or the end of a `record_function` scope."""
        if self.enabled is not None:
            self._notes.extend((name, stage, CLOCK.time_ns() // 1000))

    def annotations(self) -> list[dict[str, Any]]:
        """Return the newest starts and ends of `record_function` scopes.

        They are oldest first.
        """
        notes = iter(tuple(self._notes))
        return [
            {"stage": stage, "name": name, "device": self._device, "time_us": time_us}
            for name, stage, time_us in zip(notes, notes, notes, strict=True)
        ]

    def trace(self) -> list[dict[str, Any]]:
        """Return the events in the form of torch's snapshot."""
        found = [_trace_entry(*entry[:-1]) for entry in self.ring.entries()]
        with_stack = [n for n, stack in enumerate(self.ring.stack) if stack is not None]
        for n, frames in zip(with_stack, symbolized(filter(None, self.ring.stack)), strict=True):
            found[n]["frames"] = frames
        return found

    def frames_of_live(self) -> dict[int, list[dict[str, Any]]]:
        """Return the allocation frames of live blocks, by address.

        Blocks whose stack was not recorded are left out.
        """
        return dict(zip(self.live, symbolized(self.live.values()), strict=True))

    def frames_at(self, addr: int) -> list[dict[str, Any]]:
        """Return the allocation frames of a live block; empty without a stack."""
        return next(symbolized([self.live[addr]])) if addr in self.live else []


def _trace_entry(  # noqa: PLR0913 - one field each
    action: Action, addr: int, size: int, stream: int, time_us: int, label: str
) -> dict[str, Any]:
    where = "device_free" if action is Action.OOM else "addr"
    return {
        "action": _NAMES[action],
        where: addr,
        "size": size,
        "stream": stream,
        "time_us": time_us,
        "compile_context": "N/A",
        "user_metadata": label,
    }


def in_engine() -> bool:
    """Return whether autograd's engine runs this code.

    On a real card that would be a thread of the engine's own. The current node is not read here:
    nodes that Python has accessed are freed by recursion. Ten thousands of them overflow the stack
    (torch 2.13: THPCppFunction_dealloc, ~Node).
    """
    return bool(torch._C._current_graph_task_id() != _NO_TASK)
