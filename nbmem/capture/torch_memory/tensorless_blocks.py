"""Blocks that are in use though no tensor is in them: cuBLAS's workspaces, a library's own memory.

Tensors that no place reaches are searched among all live objects, which takes longer the older a
notebook is. The allocator says whether there can be any: each block in use is one that a place
reaches, or one in which an earlier search has found no tensor, unless it was allocated anew since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.capture.torch_cuda import backend, device_count, initialized_torch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Block = tuple[int, int]  # CUDA ordinal and address

MAX_BLOCKS = 10_000
"""Blocks without a tensor that are remembered; where there are more, each look searches."""


class TensorlessBlocks:
    """Remembers, from one recording to the next, in which blocks no tensor was found."""

    def __init__(self) -> None:
        self._blocks: set[Block] = set()
        self._allocated: dict[int, int] = {}

    def recording_begins(self) -> None:
        """Forget the blocks if anything was allocated since the last look: it may be in one."""
        allocated = _allocated()
        if allocated != self._allocated:
            self._blocks.clear()
        self._allocated = allocated

    def at_end(self, snapshot: Mapping[str, Any] | None) -> BlocksInUse | None:
        """Tell of the blocks in use at the end of a recording; None where nobody knows them."""
        return None if snapshot is None else BlocksInUse(self, snapshot)

    def hold_tensors(self, blocks: set[Block], traces: list[Any]) -> bool:
        """Whether a tensor may be in one of some blocks that no place reaches.

        Args:
            blocks: The blocks.
            traces: The history of each card since the recording began.
        """
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
    """The blocks in use at the end of a recording.

    Args:
        known: What is remembered of such blocks.
        snapshot: torch's snapshot at the end, with the history.
    """

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
        """Whether there may be a tensor beside those that places reach, by their blocks."""
        left = self._blocks.difference(reached)
        return bool(left) and self._known.hold_tensors(left, self._traces)

    def searched(self, found: Collection[Block]) -> None:
        """Remember the blocks in which a search of all live objects has found no tensor."""
        self._known.remember(self._blocks.difference(found))


def _allocated() -> dict[int, int]:
    """How many blocks each card has allocated up to now."""
    torch: Any = initialized_torch()
    if torch is None or backend() != "native":
        return {}
    stats = torch._C._cuda_memoryStats  # noqa: SLF001
    return {card: stats(card)["allocation"]["all"]["allocated"] for card in range(device_count())}


KNOWN_BLOCKS = TensorlessBlocks()
"""Blocks of this process's cards that no tensor of Python's shows."""
