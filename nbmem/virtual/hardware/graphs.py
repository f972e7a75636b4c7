"""CUDA graphs and memory pools: what is captured runs once, from a private pool."""

from __future__ import annotations

import itertools
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbmem.allocator.checkpoints import checkpoint, restore
from nbmem.core.session.events import BlockState
from nbmem.virtual.frames import level_of_user
from nbmem.virtual.hardware.deferred_free import whole
from nbmem.virtual.hardware.graph_seeds import GraphSeeds
from nbmem.virtual.warnings import VALUES

if TYPE_CHECKING:
    from collections.abc import Collection

    from nbmem.allocator.checkpoints import PoolState, Restored
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.hardware.machine import Machine

_NUMBERS = itertools.count(1)
PoolId = tuple[int, int]
_ON_DEFAULT_STREAM = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to "
    "replay them on the default stream.)"
)
_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on "
    "wrong device or stream."
)


def pool_handle() -> PoolId:
    """An id that several captures may share."""
    return (0, next(_NUMBERS))


class Pools:
    """Private pools by torch's pair of numbers; the allocator knows them by one."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu
        self._numbers: dict[PoolId, int] = {}

    def number(self, pool: Any) -> int:
        """The allocator's number of a pool."""
        key = (int(pool[0]), int(pool[1]))
        with self._gpu.lock:
            return self._numbers.setdefault(key, len(self._numbers) + 1)

    def pair(self, number: int) -> PoolId:
        """Torch's id of a pool; (0, 0) is the default one."""
        with self._gpu.lock:
            return next((pair for pair, n in self._numbers.items() if n == number), (0, 0))

    @whole
    def begin(
        self,
        pool: Any,
        *,
        streams: Collection[int] | None = None,
        thread: int | None = None,
        capture: bool = False,
    ) -> None:
        """Send allocations to a pool: all, those on some streams, or those by a thread."""
        with self._gpu.locked as allocator:
            allocator.begin_pool(self.number(pool), streams=streams, thread=thread, capture=capture)

    @whole
    def make(self, pool: Any, *, no_split: bool, shared_on_oom: bool) -> None:
        """Make an empty pool with one user."""
        with self._gpu.locked as allocator:
            number = self.number(pool)
            allocator.begin_pool(number, no_split=no_split, shared_on_oom=shared_on_oom)
            allocator.end_pool(number)

    @whole
    def end(self, pool: Any) -> None:
        """Stop doing so."""
        with self._gpu.locked as allocator:
            allocator.end_pool(self.number(pool))

    def release(self, pool: Any) -> None:
        """One user of the pool is gone."""
        self._gpu.locked.later(lambda allocator: allocator.release_pool(self.number(pool)))

    def users(self, pool: Any) -> int:
        """Who has the pool: its object, the graphs in it, and whoever allocates from it now."""
        with self._gpu.lock:
            return self._gpu.allocator.private[self.number(pool)].users

    @whole
    def checkpoint(self, pool: Any) -> PoolState:
        """Keep its state, which a recording that follows a replay begins with."""
        with self._gpu.locked as allocator:
            return checkpoint(allocator, self.number(pool))

    @whole
    def restore(self, state: PoolState) -> Restored:
        """Put a state back."""
        with self._gpu.locked as allocator:
            return restore(allocator, state)

    def live(self, pool: Any) -> set[int]:
        """The addresses of its blocks that are in use."""
        with self._gpu.lock:
            layout = self._gpu.allocator.layout()
        mine = layout.segments.pool == self.number(pool)
        at = np.searchsorted(layout.segments.addr, layout.blocks.addr, side="right") - 1
        used = mine[at] & (layout.blocks.state != BlockState.INACTIVE)
        return set(layout.blocks.addr[used].tolist())


class VirtualGraph:
    """What torch.cuda.CUDAGraph is while a virtual card is active."""

    machine: Machine

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        del keep_graph
        self._gpu: VirtualGPU = self.machine.current
        self._pool: PoolId | None = None
        self._release: Any = None
        self._seeds = GraphSeeds(self, self._gpu)

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", **_rest: Any
    ) -> None:
        """What is allocated on this stream from here comes from the graph's pool.

        Raises:
            RuntimeError: This is the default stream.
        """
        del capture_error_mode
        gpu = self._gpu = self.machine.current
        if not gpu.stream.handle:
            raise RuntimeError(_ON_DEFAULT_STREAM)
        self._pool = (next(_NUMBERS), 0) if pool is None else (int(pool[0]), int(pool[1]))
        self._seeds.begin()
        gpu.capturing.begin(gpu.stream.handle, self._seeds)
        gpu.pools.begin(self._pool, streams=gpu.capturing.streams, capture=True)
        gpu.launched = False

    def capture_end(self) -> None:
        """The graph is complete; its pool lives as long as it does.

        Raises:
            RuntimeError: Something was done that cannot be captured.
        """
        gpu, pool = self._gpu, self._pool
        gpu.pools.end(pool)
        self._release = weakref.finalize(self, gpu.pools.release, pool)
        gpu.capturing.end()
        if not gpu.launched:
            warnings.warn(_EMPTY, UserWarning, stacklevel=level_of_user())

    def register_generator_state(self, generator: Any) -> None:
        """Its seed and its offset stand on the card, for replays to go on from, while it lives."""
        self._seeds.register(generator)

    def instantiate(self) -> None:
        """Nothing to do: a virtual graph has no nodes."""

    def replay(self) -> None:
        """Nothing is allocated and nothing is computed.

        Raises:
            RuntimeError: Nothing was captured, or it was given up.
        """
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self._gpu.note(VALUES)

    def reset(self) -> None:
        """Give the pool up."""
        if self._release is not None:
            self._release()
        self._pool = None
        self._seeds.give_back()

    def pool(self) -> PoolId:
        """The pool, for other captures to share."""
        return self._pool or (0, 0)

    def enable_debug_mode(self) -> None:
        """Nothing to show."""

    def debug_dump(self, debug_path: str) -> None:
        """Nothing to show."""


class VirtualMemPool:
    """What torch.cuda.MemPool is while a virtual card is active: a pool of the current card."""

    machine: Machine

    def __init__(
        self,
        allocator: Any = None,
        use_on_oom: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        no_split: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.allocator = allocator
        self.use_on_oom = use_on_oom
        self.no_split = no_split
        self.id = pool_handle()
        gpu = self._gpu = self.machine.current
        gpu.pools.make(self.id, no_split=no_split, shared_on_oom=use_on_oom)
        weakref.finalize(self, gpu.pools.release, self.id)

    def use_count(self) -> int:
        """Users of the pool: this object, and whoever allocates from it now."""
        return self._gpu.pools.users(self.id)

    def snapshot(self, include_traces: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's signature
        """The pool's segments."""
        return torch.cuda.memory_snapshot(self.id, include_traces=include_traces)
