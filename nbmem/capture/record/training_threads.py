"""Choose the threads whose hook events make the phases.

Events of a recording do not contain the thread that caused them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.capture.record.hook_events import HookEvent

_CALLS = ("forward", "inference")


def one_loop(hook_events: Sequence[HookEvent]) -> tuple[Sequence[HookEvent] | None, set[int]]:
    """Select the hook events from which phases can be built.

    Threads that trained one after another make one loop. Threads that only computed a part of
    another thread's forward (DataParallel's) make no loop. If several trained simultaneously, an
    event between their hook events may belong to any of them.

    Args:
        hook_events: The hook events of all threads, in order.

    Returns:
        The hook events (None if no phase can be built), and the threads that trained
        simultaneously.
    """
    by_thread: dict[int, list[HookEvent]] = defaultdict(list)
    for hook_event in hook_events:
        by_thread[hook_event.thread].append(hook_event)
    if len(by_thread) < 2:
        return hook_events, set()
    loops = {t: own for t, own in by_thread.items() if not _helps(own, t, by_thread)}
    together = _together([(own[0].sample, own[-1].sample, t) for t, own in loops.items()])
    if not together:
        return [hook_event for hook_event in hook_events if hook_event.thread in loops], set()
    return None, together


def trained_together(threads: Collection[int], names: Mapping[int, str]) -> str:
    """Format the note that several threads trained at the same time.

    Args:
        threads: The numbers of their loops.
        names: The threads' names by these numbers.
    """
    named = ", ".join(sorted(repr(names.get(thread, str(thread))) for thread in threads))
    return (
        f"{len(threads)} threads trained at the same time ({named}): an event may be any of "
        "theirs, so there are no phases, and only what each thread's own calls showed has names."
    )


def _helps(
    own: Sequence[HookEvent], thread: int, by_thread: Mapping[int, Sequence[HookEvent]]
) -> bool:
    """Return True if a thread only called modules for another thread.

    All of its calls are inside a forward of that thread.
    """
    if any(hook_event.kind not in _CALLS for hook_event in own):
        return False
    return any(
        begin <= own[0].sample and own[-1].sample <= end
        for other, hook_events in by_thread.items()
        if other != thread
        for begin, end in _forwards(hook_events)
    )


def _forwards(hook_events: Sequence[HookEvent]) -> list[tuple[int, int]]:
    """Return the counter samples between which forwards ran."""
    found = []
    begin: int | None = None
    for hook_event in hook_events:
        if hook_event.kind in _CALLS and hook_event.begins:
            begin = hook_event.sample
        elif hook_event.kind in _CALLS and begin is not None:
            found.append((begin, hook_event.sample))
            begin = None
    return found


def _together(spans: Sequence[tuple[int, int, int]]) -> set[int]:
    """Return the threads whose stretches (first, last, thread) overlap."""
    return {
        thread
        for first, last, thread in spans
        for begin, end, other in spans
        if other != thread and begin < last and first < end
    }
