"""CUDA graphs and memory pools; a captured region runs once."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbmem.allocator.checkpoints import PoolState, RestoreResult, checkpoint, restore
from nbmem.core.session.events import BlockState
from nbmem.virtual.frames import level_of_user
from nbmem.virtual.hardware.deferred_free import defer_interrupt
from nbmem.virtual.hardware.graph_seeds import GraphSeeds
from nbmem.virtual.warnings import VALUES

if TYPE_CHECKING:
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
    """Return a new pool id that several captures may share."""
    return (0, next(_NUMBERS))


class Pools:
    """Private pools by torch's pair of ids; the allocator numbers them."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu
        self._numbers: dict[PoolId, int] = {}

    def number(self, pool: Any) -> int:
        """Return the allocator's number of a pool."""
        key = (int(pool[0]), int(pool[1]))
        with self._gpu.lock:
            return self._numbers.setdefault(key, len(self._numbers) + 1)

    def pair(self, number: int) -> PoolId:
        """Return torch's id of a pool by number; (0, 0) is the default pool."""
        with self._gpu.lock:
            return next((pair for pair, n in self._numbers.items() if n == number), (0, 0))

    @defer_interrupt
    def begin(
        self,
        pool: Any,
        *,
        streams: Collection[int] | None = None,
        thread: int | None = None,
        capture: bool = False,
    ) -> None:
        """Route allocations to a pool: all, or by streams or by thread."""
        with self._gpu.locked as allocator:
            allocator.begin_pool(self.number(pool), streams=streams, thread=thread, capture=capture)

    @defer_interrupt
    def make(self, pool: Any, *, no_split: bool, shared_on_oom: bool) -> None:
        """Create an empty pool with one user."""
        with self._gpu.locked as allocator:
            number = self.number(pool)
            allocator.begin_pool(number, no_split=no_split, shared_on_oom=shared_on_oom)
            allocator.end_pool(number)

    @defer_interrupt
    def end(self, pool: Any) -> None:
        """Stop routing allocations to a pool."""
        with self._gpu.locked as allocator:
            allocator.end_pool(self.number(pool))

    def release(self, pool: Any) -> None:
        """Remove one user of a pool."""
        self._gpu.locked.schedule(lambda allocator: allocator.release_pool(self.number(pool)))

    def users(self, pool: Any) -> int:
        """Count the users of a pool.

        Users are its object, the graphs in it, and whatever allocates from it now.
        """
        with self._gpu.lock:
            return self._gpu.allocator.private[self.number(pool)].users

    @defer_interrupt
    def checkpoint(self, pool: Any) -> PoolState:
        """Save a pool's state, for a recording that follows a replay."""
        with self._gpu.locked as allocator:
            return checkpoint(allocator, self.number(pool))

    @defer_interrupt
    def restore(self, state: PoolState) -> RestoreResult:
        """Restore a saved state."""
        with self._gpu.locked as allocator:
            return restore(allocator, state)

    def live(self, pool: Any) -> set[int]:
        """Return the addresses of a pool's blocks in use."""
        with self._gpu.lock:
            layout = self._gpu.allocator.layout()
        mine = layout.segments.pool == self.number(pool)
        at = np.searchsorted(layout.segments.addr, layout.blocks.addr, side="right") - 1
        used = mine[at] & (layout.blocks.state != BlockState.INACTIVE)
        return set(layout.blocks.addr[used].tolist())


class VirtualGraph:
    """The stand-in for torch.cuda.CUDAGraph while a virtual card is active."""

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
        """Begin a capture: this stream allocates from the graph's pool.

        Raises:
            RuntimeError: This is the default stream.
        """
        del capture_error_mode
        gpu = self._gpu = self.machine.current
        if not gpu.stream.handle:
            raise RuntimeError(_ON_DEFAULT_STREAM)
        self._pool = (next(_NUMBERS), 0) if pool is None else (int(pool[0]), int(pool[1]))
        self._seeds.begin()
        gpu.capture.begin(gpu.stream.handle, self._seeds)
        gpu.pools.begin(self._pool, streams=gpu.capture.streams, capture=True)
        gpu.launched = False

    def capture_end(self) -> None:
        """End the capture; the graph keeps its pool alive.

        Raises:
            RuntimeError: Something was done that cannot be captured.
        """
        gpu, pool = self._gpu, self._pool
        gpu.pools.end(pool)
        self._release = weakref.finalize(self, gpu.pools.release, pool)
        gpu.capture.end()
        if not gpu.launched:
            warnings.warn(_EMPTY, UserWarning, stacklevel=level_of_user())

    def register_generator_state(self, generator: Any) -> None:
        """Register a generator.

        Its seed and offset occupy card memory while the graph exists, for replays to continue
        from.
        """
        self._seeds.register(generator)

    def instantiate(self) -> None:
        """Do nothing: a virtual graph has no nodes."""

    def replay(self) -> None:
        """Record that replays compute no values; allocate nothing.

        Raises:
            RuntimeError: Nothing was captured, or the graph was reset.
        """
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self._gpu.launch_unseen()
        self._gpu.note(VALUES)

    def reset(self) -> None:
        """Release the pool and the generator states."""
        if self._release is not None:
            self._release()
        self._pool = None
        self._seeds.give_back()

    def pool(self) -> PoolId:
        """Return the pool's id, for other captures to share."""
        return self._pool or (0, 0)

    def enable_debug_mode(self) -> None:
        """Do nothing: there is no graph to dump."""

    def debug_dump(self, debug_path: str) -> None:
        """Do nothing: there is no graph to dump."""


class VirtualMemPool:
    """The stand-in for torch.cuda.MemPool, a pool of the current card."""

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
        """Count the pool's users: this object and current allocation scopes."""
        return self._gpu.pools.users(self.id)

    def snapshot(self, include_traces: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's signature
        """Return the pool's segments."""
        return torch.cuda.memory_snapshot(self.id, include_traces=include_traces)
