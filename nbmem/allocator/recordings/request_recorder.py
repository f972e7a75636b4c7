"""Record the requests that a run makes of a simulated allocator."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.request_sequence import (
    ALLOCATE,
    COMPLETE,
    EMPTY,
    FREE,
    FREE_LATER,
    SHIFT,
    TAKE,
    RequestSequence,
)
from nbmem.core.session.events import GIVES_BACK, Action

if TYPE_CHECKING:
    from nbmem.allocator.caching import CachingAllocator

MAX_OPERATIONS = 100_000
"""Runs with more are not replayed: one replay would take half a second."""


class RequestRecorder:
    """A recorder of an allocator's requests, from its first one on.

    The allocator must have no limit: releases of cached memory are taken for the program's own.

    Args:
        allocator: Its events are passed on to the observer that it has.
        outside: Returns the bytes of the process outside of the allocator.
        attempt: Returns the purpose of a request that the program can do without, else None.
    """

    def __init__(
        self,
        allocator: CachingAllocator,
        outside: Callable[[], int],
        attempt: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self._allocator, self._outside, self._attempt = allocator, outside, attempt
        self._emit = allocator.emit
        self._operations: list[int] = []
        self._sizes: list[int] = []
        self._streams: list[int] = []
        self._pools: list[int] = []
        self._attempts: list[int] = []
        self._purposes: dict[Hashable, int] = {None: 0}
        self._growths: list[int] = []
        self._numbers: dict[int, int] = {}
        self._waiting: set[int] = set()
        allocator.emit = self._note

    def _note(self, action: Action, addr: int, size: int, stream: int) -> None:
        if self._emit is not None:
            self._emit(action, addr, size, stream)
        operations = self._operations
        if len(operations) > MAX_OPERATIONS:
            return
        if action == Action.ALLOC:
            self._grow()
            number = self._numbers[addr] = len(self._sizes)
            operations.append(number << SHIFT | ALLOCATE)
            owner = self._allocator.live[addr].segment.pool.owner
            self._sizes.append(size)
            self._streams.append(stream)
            self._pools.append(0 if owner is None else owner.number)
            purpose = self._attempt()
            self._attempts.append(self._purposes.setdefault(purpose, len(self._purposes)))
        elif action == Action.FREE_REQUESTED:
            self._waiting.add(addr)
            operations.append(self._numbers[addr] << SHIFT | FREE_LATER)
        elif action == Action.FREE_COMPLETED and addr in self._waiting:
            self._waiting.discard(addr)
            number = self._numbers.pop(addr)
            if operations[-1] == number << SHIFT | FREE_LATER:
                operations[-1] = number << SHIFT | FREE
            else:  # another stream used the block
                operations.append(COMPLETE)
        elif action in GIVES_BACK and operations and operations[-1] != EMPTY:
            operations.append(EMPTY)

    def _grow(self) -> None:
        grown = self._outside() - sum(self._growths)
        if grown:
            self._operations.append(len(self._growths) << SHIFT | TAKE)
            self._growths.append(grown)

    def sequence(self) -> RequestSequence | None:
        """Return the requests so far; None if there are none, or too many."""
        if not self._sizes or len(self._operations) > MAX_OPERATIONS:
            return None
        self._grow()
        return RequestSequence(
            operations=np.array(self._operations, np.int64),
            sizes=np.array(self._sizes, np.int64),
            streams=np.array(self._streams, np.int64),
            pools=np.array(self._pools, np.int64),
            attempts=np.array(self._attempts, np.int64),
            growths=tuple(self._growths),
            release=self._allocator.rules.release,
            settings=self._allocator.settings,
        )
