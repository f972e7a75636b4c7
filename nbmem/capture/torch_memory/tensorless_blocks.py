"""Remember the allocated blocks that hold no tensor.

These are cuBLAS's workspaces and the memory of other libraries.

Tensors that no place reaches are searched among all live objects, which takes longer the older a
notebook is. The allocator shows whether there can be any. There is none if each block in use is
reached by a place, or contained no tensor in an earlier search. The latter does not count if the
block was allocated again since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from nbmem.capture.torch_cuda import allocator_backend, device_count, initialized_torch

if TYPE_CHECKING:
    Block = tuple[int, int]  # CUDA ordinal and address

MAX_BLOCKS = 10_000
"""Blocks without a tensor that are remembered; if there are more, each walk searches."""


class TensorlessBlocks:
    """Blocks in which no tensor was found, kept between recordings."""

    def __init__(self) -> None:
        self._blocks: set[Block] = set()
        self._allocated: dict[int, int] = {}

    def recording_begins(self) -> None:
        """Forget the blocks if anything was allocated since the last search.

        The new allocation may be in one of them.
        """
        allocated = _allocated()
        if allocated != self._allocated:
            self._blocks.clear()
        self._allocated = allocated

    def at_end(self, snapshot: Mapping[str, Any] | None) -> BlocksInUse | None:
        """Return the blocks in use at the end of a recording.

        None without a snapshot.
        """
        return None if snapshot is None else BlocksInUse(self, snapshot)

    def hold_tensors(self, blocks: set[Block], traces: list[Any]) -> bool:
        """Return whether a tensor may be in one of some unreached blocks."""
        if not blocks <= self._blocks:
            return True
        now = _allocated()
        for card in {card for card, _ in blocks}:
            new = [entry["addr"] for entry in traces[card] if entry["action"] == "alloc"]
            made = now[card] - self._allocated.get(card, 0)
            if not 0 <= made <= len(new) or any((card, addr) in blocks for addr in new):
                return True
        self.remember(blocks)
        return False

    def remember(self, blocks: set[Block]) -> None:
        """Remember blocks in which no tensor is now."""
        self._blocks = blocks if len(blocks) <= MAX_BLOCKS else set()
        self._allocated = _allocated()


class BlocksInUse:
    """The blocks in use at the end of a recording."""

    def __init__(self, known: TensorlessBlocks, snapshot: Mapping[str, Any]) -> None:
        self._known = known
        self._traces = snapshot["device_traces"]
        self._blocks = {
            (segment["device"], block["address"])
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }

    def hold_more_than(self, reached: Collection[Block]) -> bool:
        """Return whether unreached blocks may hold a tensor.

        `reached` are the blocks of the tensors that places reach.
        """
        left = self._blocks.difference(reached)
        return bool(left) and self._known.hold_tensors(left, self._traces)

    def searched(self, found: Collection[Block]) -> None:
        """Remember the blocks in which a search of all objects found no tensor."""
        self._known.remember(self._blocks.difference(found))


def _allocated() -> dict[int, int]:
    """Return how many blocks each GPU has allocated so far.

    Empty before CUDA is initialized, and for allocators other than torch's native one.
    """
    torch: Any = initialized_torch()
    if torch is None or allocator_backend() != "native":
        return {}
    stats = torch._C._cuda_memoryStats  # noqa: SLF001
    return {card: stats(card)["allocation"]["all"]["allocated"] for card in range(device_count())}


KNOWN_BLOCKS = TensorlessBlocks()
"""Blocks of this process's cards without a tensor in Python."""
