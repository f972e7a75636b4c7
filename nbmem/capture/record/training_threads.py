"""Choose the threads whose hook events make the phases.

Events of a recording do not say which thread caused them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nbmem.capture.record.hook_events import Turn

_CALLS = ("forward", "inference")


def one_loop(turns: Sequence[Turn]) -> tuple[Sequence[Turn] | None, set[int]]:
    """Select the hook events from which phases can be built.

    Threads that trained one after the other make one loop. Those that only computed a part of
    another thread's forward (DataParallel's) make none of their own. Where several trained at the
    same time, an event between their hook events may be of any of them.

    Args:
        turns: The hook events of all threads, in order.

    Returns:
        The hook events (None where no phase can be built), and the threads that trained at the same
        time.
    """
    by_thread: dict[int, list[Turn]] = defaultdict(list)
    for turn in turns:
        by_thread[turn.thread].append(turn)
    if len(by_thread) < 2:
        return turns, set()
    loops = {t: own for t, own in by_thread.items() if not _helps(own, t, by_thread)}
    together = _together([(own[0].mark, own[-1].mark, t) for t, own in loops.items()])
    if not together:
        return [turn for turn in turns if turn.thread in loops], set()
    return None, together


def trained_together(threads: Collection[int], names: Mapping[int, str]) -> str:
    """Format the note that several threads trained at the same time.

    Args:
        threads: The numbers of their loops.
        names: The threads' names by these.
    """
    named = ", ".join(sorted(repr(names.get(thread, str(thread))) for thread in threads))
    return (
        f"{len(threads)} threads trained at the same time ({named}): an event may be any of "
        "theirs, so there are no phases, and only what each thread's own calls showed has names."
    )


def _helps(own: Sequence[Turn], thread: int, by_thread: Mapping[int, Sequence[Turn]]) -> bool:
    """Return True if a thread only called modules for another thread.

    All of its calls lie inside a forward of that thread.
    """
    if any(turn.kind not in _CALLS for turn in own):
        return False
    return any(
        begin <= own[0].mark and own[-1].mark <= end
        for other, turns in by_thread.items()
        if other != thread
        for begin, end in _forwards(turns)
    )


def _forwards(turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """Return the counter samples between which forwards ran."""
    found = []
    begin: int | None = None
    for turn in turns:
        if turn.kind in _CALLS and turn.begins:
            begin = turn.mark
        elif turn.kind in _CALLS and begin is not None:
            found.append((begin, turn.mark))
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
