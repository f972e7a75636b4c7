"""What lives on a card at this moment: the allocator's blocks, with the names that Python has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.analysis.lines import users_line
from nbmem.core.categories import Category
from nbmem.core.events import BlockState
from nbmem.core.holders import HolderKind
from nbmem.ipython.freeing.cache import histories
from nbmem.probes import tensors
from nbmem.probes.cells import with_cells
from nbmem.probes.holders import walk
from nbmem.probes.optimizers import of_optimizer, parameters_of_optimizer
from nbmem.report import Holding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbmem.core.holders import HeldStorage
    from nbmem.core.torch_snapshot import DeviceHistory
    from nbmem.probes.tensors import Seen


def live_now(namespace: Mapping[str, Any]) -> dict[int, tuple[Holding, ...]]:
    """Every live block of every card that torch uses, the largest first.

    Lines are known of what was allocated while stacks were taken.

    Args:
        namespace: The notebook's names.
    """
    cards = histories()
    if not cards:
        return {}
    found, trained = walk(namespace).by_device, _trained(namespace)
    return {
        index: _holdings(history, found.get(index, ()), trained.get(index, {}))
        for index, history in enumerate(cards)
    }


def _holdings(
    history: DeviceHistory, storages: tuple[HeldStorage, ...], trained: Mapping[int, Category]
) -> tuple[Holding, ...]:
    held = {storage.addr: storage for storage in storages}
    blocks = history.layout_at_end.blocks
    stacks = with_cells(history.stacks)
    rows = []
    for addr, size, requested, state, stack in zip(
        *(column.tolist() for _, column in blocks.columns()), strict=True
    ):
        if state != BlockState.ALLOCATED:
            continue
        storage = held.get(addr)
        rows.append(
            Holding(
                name=storage.name if storage else None,
                category=trained[addr] if addr in trained else _category(storage),
                requested=requested,
                block=size,
                born_in=None,
                line=users_line(stacks[stack]) if stack >= 0 else None,
                form=storage.form if storage else None,
                holders=storage.holders if storage else (),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.requested))


def _category(storage: HeldStorage | None) -> Category:
    if storage is None:
        return Category.UNKNOWN
    only_graphs = all(way.kind is HolderKind.GRAPH for way in storage.holders)
    return Category.ACTIVATIONS if only_graphs else Category.USER_TENSORS


def _trained(namespace: Mapping[str, Any]) -> dict[int, dict[int, Category]]:
    """What the notebook's modules and optimizers say of storages, by card and address."""
    found: dict[int, dict[int, Category]] = {}

    def note(seen: Iterable[Seen]) -> None:
        for one in seen:
            found.setdefault(one.device, {})[one.addr] = one.category

    for _, optimizer in tensors.optimizers_in(namespace):
        note(of_optimizer(optimizer))
        note(parameters_of_optimizer(optimizer))
    for _, module in tensors.modules_in(namespace):
        note(tensors.gradients_of_module(module))
        note(tensors.of_module(module))
    return found
