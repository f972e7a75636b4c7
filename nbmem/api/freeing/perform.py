"""Perform an action: predict, free, measure, and name what stays.

Freed memory is measured by torch's counters on a card. For host memory torch has none: the storages
that the notebook's names reach are registered. Storages missing from the registry afterwards were
freed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.api.freeing import cache, frameworks, names, results, tracebacks
from nbmem.api.live_tensors import histories, tracking_uncounted
from nbmem.capture.heap import reachable_storages, walk
from nbmem.capture.interpreter.notebook_cells import running_shell, user_names
from nbmem.capture.record.cell_deltas import DeltaReader
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.errors import UsageError
from nbmem.core.freed_memory import Freed, Totals
from nbmem.core.session.events import BlockState
from nbmem.core.session.holders import Root, roots_of
from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from nbmem.api.freeing.target import Target
    from nbmem.capture.tensors.storage_registry import StorageRegistry
    from nbmem.report.model import Command


class CardTotals:
    """Totals of CUDA's cards, by torch's counters."""

    def __init__(self) -> None:
        self._reader = DeltaReader()

    def now(self) -> Totals:
        """Return the totals that are counted at this moment."""
        return self._reader.now()

    def blocks(self) -> dict[tuple[int, int], int]:
        """Return the bytes of each live block, by card and address."""
        found: dict[tuple[int, int], int] = {}
        for index, history in enumerate(histories()):
            blocks = history.layout_at_end.blocks
            blocks = blocks[np.flatnonzero(blocks.state == BlockState.ALLOCATED)]
            found.update(
                ((index, addr), size)
                for addr, size in zip(blocks.addr.tolist(), blocks.size.tolist(), strict=True)
            )
        return found


class HostTotals:
    """Totals of memory whose allocator keeps no history.

    Only storages that were registered count.
    """

    def __init__(self, torch: Any, registry: StorageRegistry) -> None:
        self._torch, self._registry = torch, registry

    def now(self) -> Totals:
        """Return the live bytes of registered storages, and the process's."""
        # Look for freed storages now, among all of them.
        self._registry.check_all_next()
        self._registry.sweep(0)
        process = self._registry.device.read(self._torch, 0, whole=False).process
        return Totals(sum(self._registry.live_bytes.values()), None, process)

    def blocks(self) -> dict[tuple[int, int], int]:
        """Return the bytes of each live storage, by device and address.

        The keys are those of StorageRegistry: (-1 - index of the device, address).
        """
        return self._registry.storages()


@contextmanager
def choose_totals() -> Iterator[CardTotals | HostTotals]:
    """Choose the totals for the memory that torch uses."""
    with tracking_uncounted() as registry:
        yield CardTotals() if registry is None else HostTotals(loaded_torch(), registry)


MAX_LEFT = 3
"""Holders that are named if memory is not freed."""


def perform(command: Command) -> list[Freed]:
    """Free what a command names.

    The arguments are `cache`, `frameworks`, `traceback`, `out`, or paths from the notebook's names.

    Args:
        command: `free` with its arguments, from a page, a tip or the user.

    Returns:
        One result for each thing named.

    Raises:
        UsageError: It is not such a command, or an argument cannot be freed. In that case nothing
        was freed.
    """
    if command.name != "free" or not command.arguments:
        raise UsageError(
            "Name what to free: `%nbmem free cache`, `free frameworks`, `free traceback`, `free "
            "out`, or variables of yours: `free checkpoint['model'] history`."
        )
    word = " ".join(command.arguments).strip()
    if word == "cache":
        return [_free_cache()]
    if word == "frameworks":
        return [_free_frameworks()]
    shell, namespace = running_shell(), user_names()
    single = {"traceback": tracebacks.target, "out": results.target}.get(word)
    with choose_totals() as totals:
        if single is not None:
            return [_free(namespace, single(shell, namespace), totals)]
        wanted = names.targets(shell, namespace, word)
        return [_free(namespace, target, totals) for target in wanted]


def _free_cache() -> Freed:
    reader = DeltaReader()
    predicted, before = cache.releasable(), reader.now()
    cache.empty()
    after = reader.now()
    stuck = (after.reserved or 0) - after.allocated
    note = f"{format_bytes(stuck)} stay cached: free pieces of segments in which tensors live."
    return Freed(
        what="the cache",
        measure="reserved",
        predicted=predicted,
        before=before,
        after=after,
        notes=(note,) if stuck else (),
    )


def _free_frameworks() -> Freed:
    reader, notes = DeltaReader(), list[str]()
    shares = frameworks.shares(notes)
    before = replace(reader.now(), frameworks=sum(share.held for share in shares))
    frameworks.give_back(shares)
    left = frameworks.shares(notes)
    return Freed(
        what="other frameworks' pools",
        measure="frameworks",
        predicted=frameworks.unused(shares),
        before=before,
        after=replace(reader.now(), frameworks=sum(share.held for share in left)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _free(namespace: Mapping[str, Any], target: Target, totals: CardTotals | HostTotals) -> Freed:
    predicted_freed = reachable_storages(namespace) - reachable_storages(namespace, target.cut)
    predicted_freed |= target.garbage
    blocks = totals.blocks()
    before = totals.now()
    notes = target.release()
    after = totals.now()
    return Freed(
        what=target.what,
        measure="allocated",
        predicted=sum(blocks.get(at, 0) for at in predicted_freed),
        before=before,
        after=after,
        left=_left(namespace, target.reached & totals.blocks().keys()),
        notes=tuple(notes),
    )


def _left(namespace: Mapping[str, Any], storages: set[tuple[int, int]]) -> tuple[Root, ...]:
    """Return the largest roots that still hold some storages."""
    if not storages:
        return ()
    found = walk(namespace).by_device
    still = [
        held
        for card, all_held in found.items()
        for held in all_held
        if (card, held.addr) in storages
    ]
    order = sorted(roots_of(tuple(still)), key=lambda root: -root.reached)
    return tuple(order[:MAX_LEFT])
