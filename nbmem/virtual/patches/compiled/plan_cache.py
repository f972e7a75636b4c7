"""A cache of Inductor's plans, for later runs of this process.

Plans are in torch's own cache, for the time of the process. An estimate runs one program again and
again, each time on a card of its own. What changes is often in no region: an optimizer, the
allocator's settings, the card's size. The key of torch's cache has what a region was compiled from:
the graph, the sizes, types and devices of its inputs, the settings and modes. Each kind of card has
a folder of its own.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_functorch/_aot_autograd/autograd_cache.py

The memory of a plan on the card while it is made (constants, what Inductor times) is part of the
run. It is allocated again where the plan is reused. A plan that leaves memory there for good is
made anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmem.core.session.events import Action
from nbmem.virtual.patches.patcher import Patch, patches_of

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.hardware.machine import Machine

SETTINGS = {"force_disable_caches": False, "fx_graph_cache": True, "fx_graph_remote_cache": False}
"""Inductor's settings, under which plans are saved."""
AUTOGRAD_SETTINGS = {
    "enable_autograd_cache": True,
    "enable_remote_autograd_cache": False,
    "bundled_autograd_cache": True,
}
"""AOTAutograd's, which has Inductor's part of the plan with its own."""
_taken: dict[tuple[str, str], list[_PlanAllocations]] = {}
"""By folder and torch's key: what the plan allocated on each card."""


def _folder_of(machine: Machine) -> str:
    """Return a folder name for a machine's kinds of cards."""
    kinds = repr([dataclasses.astuple(_kind(gpu.card)) for gpu in machine.gpus])
    return hashlib.sha256(kinds.encode()).hexdigest()


def _kind(card: Card) -> Card:
    """Return a card without its memory size, on which no plan depends.

    With partitioned_scatter_enabled a plan does depend on it, and the card is returned itself.
    """
    from torch._inductor import config

    if getattr(config, "partitioned_scatter_enabled", False):
        return card
    return dataclasses.replace(card, total_bytes=0, nvml_total=0)


class _PlanAllocations:
    """Allocations and frees on one card while a plan is made.

    They are recorded from the start of the object to `end()`.

    Attributes:
        steps: Bytes that are taken, and the number of the block; None for bytes gives it back.
        planned: How many of the steps were done when the plan was; the others are the collector's.
        workspaces: The numbers of blocks that are cuBLAS's, which stay.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self.steps: list[tuple[int | None, int]] = []
        self.planned = 0
        self.workspaces: set[int] = set()
        self._living: dict[int, int] = {}
        self._gpu = gpu
        self._count = 0
        self._original_emit = gpu.allocator.emit
        gpu.allocator.emit = self._hear

    def _hear(self, action: Action, addr: int, size: int, stream: int) -> None:
        if action is Action.ALLOC:
            self._living[addr] = self._count
            self.steps.append((size, self._count))
            self._count += 1
        elif action is Action.FREE_COMPLETED and addr in self._living:
            self.steps.append((None, self._living.pop(addr)))
        if self._original_emit is not None:
            self._original_emit(action, addr, size, stream)

    def end(self) -> bool:
        """Stop recording; return whether everything was freed.

        Workspaces of cuBLAS, which stay, do not count.
        """
        self._gpu.allocator.emit = self._original_emit
        held = self._gpu.workspaces.holds
        self.workspaces = {number for addr, number in self._living.items() if held(addr)}
        return len(self.workspaces) == len(self._living)


class PlanCache:
    """A folder of plans, with the allocations of those in the making.

    Args:
        machine: The cards.
        folder: For plans. No other user may write there, since torch reads them as pickles.
    """

    def __init__(self, machine: Machine, folder: str) -> None:
        self._machine = machine
        self._place = str(Path(folder) / _folder_of(machine))
        self._heard: list[_PlanAllocations] = []
        self._open: list[list[_PlanAllocations]] = []
        self._left: list[tuple[VirtualGPU, int]] = []

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """Record allocations while a region is planned, until `settle()`."""
        self._heard = [_PlanAllocations(gpu) for gpu in self._machine.gpus]
        self._open.append(self._heard)
        try:
            yield
        finally:
            for heard in self._heard:
                heard.planned = len(heard.steps)

    def settle(self) -> None:
        """End the recordings and drop plans that leave allocations.

        Called after a garbage collection of what plans left in cycles: what is live then was left
        for good. What repeated plans left is freed.
        """
        for one in reversed(self._open):
            clean = [heard.end() for heard in reversed(one)]
            if not all(clean):
                for key in [key for key, heard in _taken.items() if heard is one]:
                    del _taken[key]
        self._open.clear()
        for gpu, addr in self._left:
            gpu.give(addr)
        self._left.clear()

    def patches(self) -> list[Patch]:
        """Return patches of torch's caches of plans."""
        from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
        from torch._inductor import codecache

        ways: Any = AOTAutogradCache
        return [
            *patches_of(
                ways, {"save": self._save(ways.save), "_lookup": self._lookup(ways._lookup)}
            ),
            # Alone: what Inductor has timed is in a cache, too, and is timed in every run.
            *patches_of(ways, {"_get_tmp_dir": classmethod(lambda _cls: self._place)}),
            # Half a region is not saved: its plan's allocations would not be repeated.
            *patches_of(
                codecache.FxGraphCache, {"_save_graph": staticmethod(lambda *_, **__: None)}
            ),
            # It reads all of torch's source, which does not change meanwhile.
            *patches_of(codecache, {"torch_key": lambda: b"this process"}),
        ]

    def _save(self, original_save: Callable[..., None]) -> Any:
        def save(key: str, *args: Any, **options: Any) -> None:
            _taken[self._place, key] = self._heard
            original_save(key, *args, **options)

        return staticmethod(save)

    def _lookup(self, original_lookup: Callable[..., Any]) -> Any:
        def lookup(key: str, *args: Any, **options: Any) -> Any:
            taken = _taken.get((self._place, key))
            found = None if taken is None else original_lookup(key, *args, **options)
            if found is not None and taken is not None:
                self._take(taken)
            return found

        return staticmethod(lookup)

    def _take(self, taken: list[_PlanAllocations]) -> None:
        """Repeat on each card the allocations that a plan made.

        What the plan left for the collector is freed in `settle()`.
        """
        for gpu, heard in zip(self._machine.gpus, taken, strict=True):
            held: dict[int, int] = {}
            for size, number in heard.steps[: heard.planned]:
                if number in heard.workspaces:
                    gpu.workspaces.blas()
                elif size is None:
                    gpu.give(held.pop(number))
                else:
                    held[number] = gpu.take(size)
            self._left += [(gpu, held[number]) for _, number in heard.steps[heard.planned :]]
