"""Find when cached memory went back to the driver, and the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.inference import emptied_by_user
from nbmem.allocator.recordings.recording import CardRecording
from nbmem.core.session.events import GIVES_BACK, TAKES, Action

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceTrace
    from nbmem.report.ledger.card_ledger import CardLedger


def releases_for_requests(trace: DeviceTrace) -> tuple[int, ...]:
    """Return where memory was released because a request found no room.

    Calls of empty_cache() are left out.
    """
    return tuple(at for at, by_user in releases(recording_of(trace)).items() if not by_user)


def had_room(card_ledger: CardLedger, at: int) -> bool:
    """Return whether the card had room for the request after a release.

    If so, no request needed the release.

    cuDNN's benchmark mode empties the cache itself, during a call. Known limit: a release under the
    user's memory fraction cannot be told apart.
    """
    events, ledger = card_ledger.trace.events, card_ledger.ledger(at)
    takes = np.flatnonzero(np.isin(events.action[at:], TAKES))
    size = int(events.size[at + takes[0]]) if len(takes) else ledger.total_bytes
    return ledger.used + size <= ledger.total_bytes


def releases_by_user(trace: DeviceTrace) -> tuple[int, ...]:
    """Return where the user's torch.cuda.empty_cache() released memory."""
    return tuple(at for at, by_user in releases(recording_of(trace)).items() if by_user)


def recording_of(trace: DeviceTrace) -> CardRecording:
    """Convert a card's trace to a recording for the allocator's tools."""
    return CardRecording(
        name="",
        device=trace.info.index,
        events=trace.events,
        start=trace.start,
        end=trace.end,
        settings=trace.settings,
    )


def releases(recording: CardRecording) -> dict[int, bool]:
    """Map each run of releases to whether the user called for it.

    The key is the position at which the run begins.

    It was for a request if the next event takes memory and there was never room for both. Otherwise
    only empty_cache() explains it (see Prediction._may_be_for).
    """
    events = recording.events
    gives = np.isin(events.action, GIVES_BACK)
    if not gives.any():
        return {}
    takes = np.isin(events.action, TAKES)
    change = np.where(takes, events.size, 0) - np.where(gives, events.size, 0)
    held = np.concatenate([[0], np.cumsum(change)])
    highest = held.max()
    starts = np.flatnonzero(gives & ~np.concatenate([[False], gives[:-1]]))
    called = emptied_by_user(recording) if recording.stacks else frozenset()
    found = {}
    for start in starts.tolist():
        end = start
        while end < len(events) and gives[end]:
            end += 1
        follows = int(events.action[end]) if end < len(events) else -1
        for_request = follows == Action.OOM or (
            end < len(events) and bool(takes[end]) and held[start] + events.size[end] > highest
        )
        found[start] = start in called or not for_request
    return found
