"""List live tensors: allocator blocks with the names in Python.

Where torch's allocator shows no blocks (mostly on the host), the storages that Python reaches are
listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.api.tracing import virtual_card
from nbmem.capture.devices.accelerators import device_without_history
from nbmem.capture.heap import walk
from nbmem.capture.interpreter.notebook_cells import number_cell_files, user_names
from nbmem.capture.tensors import tensors
from nbmem.capture.tensors.active_registry import activate_registry
from nbmem.capture.tensors.modules import named_parameters
from nbmem.capture.tensors.optimizers import parameters_of_optimizer, state_of_optimizer
from nbmem.capture.tensors.storage_registry import StorageRegistry
from nbmem.capture.torch_cuda import (
    device_count,
    loaded_torch,
    torch_with_history,
    torch_with_memory,
)
from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.files.torch_snapshot import DeviceHistory, device_history
from nbmem.core.session.categories import Category
from nbmem.core.session.events import BlockState, Layout
from nbmem.core.session.holders import HeldStorage, HolderKind
from nbmem.core.session.tensor_names import without_shape
from nbmem.report.analysis.external_storages import external_storages
from nbmem.report.analysis.source_lines import users_line
from nbmem.report.ledger.card_ledger import WORKSPACE
from nbmem.report.ledger.cublas_workspaces import unheld_workspaces
from nbmem.report.model import Holding

if TYPE_CHECKING:
    from nbmem.capture.tensors.tensors import ObservedStorage


LARGEST = 10
"""Storages that are listed by default."""


class Top:
    """The largest live tensors of the cards, or of the host.

    The host's are listed if no card is used. It displays itself, with the holders of each tensor.

    Attributes:
        holdings: Every live block of each card by its index, largest first; a card without live
            blocks is left out.
        kind: torch's name for such devices: "cuda", or "cpu" for the host.
    """

    def __init__(
        self, holdings: Mapping[int, tuple[Holding, ...]], most: int, kind: str = "cuda"
    ) -> None:
        self.holdings = {index: held for index, held in holdings.items() if held}
        self.kind = kind
        self._most = most

    def _cards(self) -> Iterable[tuple[str, tuple[Holding, ...]]]:
        for index, held in (self.holdings or {0: ()}).items():
            yield "The host's memory" if self.kind == "cpu" else f"Card {index}", held

    def bundles(self) -> list[dict[str, str]]:
        """Return `text/plain` and `text/html` for each card."""
        from nbmem.views.live_tensors import render_top, render_top_html

        return [
            {
                "text/plain": render_top(held, self._most, card),
                "text/html": render_top_html(held, self._most, card),
            }
            for card, held in self._cards()
        ]

    def __str__(self) -> str:
        return "\n\n".join(bundle["text/plain"] for bundle in self.bundles())

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        pages = "".join(bundle["text/html"] for bundle in self.bundles())
        return {"text/plain": str(self), "text/html": pages}


_VIRTUAL = (
    "This process runs on a virtual card and sees no other. In a terminal, `nbmem gpus` lists the "
    "real ones."
)


def in_use_now() -> str:
    """List the processes on each card, or why that is unknown.

    A process that runs on virtual cards sees those alone.
    """
    from nbmem.capture.processes.gpu_processes import cards_now
    from nbmem.views.gpu_processes import render_gpu_processes

    try:
        found = render_gpu_processes(cards_now())
    except ProbeUnavailableError as err:
        return str(err)
    return found if virtual_card() is None else f"{found}\n\n- {_VIRTUAL}"


def top(most: int = LARGEST) -> Top:
    """List the largest tensors that live now, and all their holders.

    If torch uses no card, those in the host's memory are listed. In a notebook this is `%nbmem
    top`; in a script the names are those of `__main__`. A running function counts as a holder, too.

    Args:
        most: Number of lines for each card; storages without distinguishing names share one.
    """
    with tracking_uncounted() as registry:
        if registry is None:
            return Top(live_now(user_names()), most)
        return Top(reachable_storages(user_names()), most, registry.device.kind)


@contextmanager
def tracking_uncounted() -> Iterator[StorageRegistry | None]:
    """Track storages in the context if torch's allocator lists no blocks.

    Yields a storage registry. Yields None if CUDA's allocator has blocks, or if a virtual card was
    chosen, used or not.
    """
    torch: Any = loaded_torch()
    card = virtual_card()
    if torch is None or torch_with_memory() is not None or (card is not None and card.chosen):
        yield None
        return
    registry = StorageRegistry(torch, device_without_history(torch))
    try:
        with activate_registry(registry):
            yield registry
    finally:
        registry.close()


def histories() -> list[DeviceHistory]:
    """Return the memory layout of every card that torch uses.

    Empty before CUDA is initialized, and with another allocator than torch's.
    """
    torch: Any = torch_with_history()
    if torch is None:
        return []
    snapshot = {**torch.cuda.memory._snapshot(), "device_traces": ()}  # noqa: SLF001
    return [device_history(snapshot, index) for index in range(device_count())]


def live_now(namespace: Mapping[str, Any]) -> dict[int, tuple[Holding, ...]]:
    """Return every live block of every card, the largest first.

    Source lines are known for blocks that were allocated while stacks were recorded.

    Args:
        namespace: The notebook's names.
    """
    cards = histories()
    if not cards:
        return {}
    found, trained = walk(namespace), _model_storages(namespace)
    all_cards = {}
    for index, history in enumerate(cards):
        storages, seen = found.by_device.get(index, ()), trained.get(index, {})
        known = {storage.addr for storage in storages} | set(seen)
        cublas = _workspaces(history.layout_at_end, known) if found.complete else set()
        all_cards[index] = _holdings(history, storages, seen, cublas)
    return all_cards


def reachable_storages(namespace: Mapping[str, Any]) -> dict[int, tuple[Holding, ...]]:
    """Return every storage that Python reaches, the largest first.

    Call it while a storage registry is active. Its identity of a device is -1 - index.

    Args:
        namespace: The notebook's names.
    """
    trained = _model_storages(namespace)
    return {
        -1 - place: tuple(
            _without_line(
                one, *_category_and_name(one, trained.get(place, {}).get(one.addr)), one.size
            )
            for one in sorted(storages, key=lambda one: -one.size)
        )
        for place, storages in walk(namespace).by_device.items()
    }


def _workspaces(layout: Layout, known: set[int]) -> set[int]:
    """Find cuBLAS workspaces among live blocks unknown to Python.

    Returns their addresses.
    """
    blocks, segments = layout.blocks, layout.segments
    unheld = (blocks.state == BlockState.ALLOCATED) & ~np.isin(blocks.addr, list(known))
    addrs = blocks.addr[unheld]
    home = np.searchsorted(segments.addr, addrs, "right") - 1
    mine = unheld_workspaces(blocks.requested[unheld], segments.stream[home])
    return set(addrs[mine].tolist())


def _holdings(
    history: DeviceHistory,
    storages: tuple[HeldStorage, ...],
    trained: Mapping[int, ObservedStorage],
    cublas: set[int],
) -> tuple[Holding, ...]:
    held = {storage.addr: storage for storage in storages}
    blocks = history.layout_at_end.blocks
    stacks = number_cell_files(history.stacks)
    rows = []
    for addr, size, requested, state, stack in zip(
        *(column.tolist() for _, column in blocks.columns()), strict=True
    ):
        if state != BlockState.ALLOCATED:
            continue
        storage = held.get(addr)
        category, name = _category_and_name(storage, trained.get(addr))
        if addr in cublas:
            category, name = Category.WORKSPACE, WORKSPACE
        rows.append(
            Holding(
                name=name,
                category=category,
                requested=requested,
                block=size,
                born_in=None,
                line=users_line(stacks[stack]) if stack >= 0 else None,
                form=storage.form if storage else None,
                holders=storage.holders if storage else (),
            )
        )
    rows += [
        _without_line(storage, Category.FRAMEWORKS, storage.name, 0)
        for storage in external_storages(history.layout_at_end.segments, storages)
    ]
    return tuple(sorted(rows, key=lambda row: -row.requested))


def _without_line(
    storage: HeldStorage, category: Category, name: str | None, block: int
) -> Holding:
    return Holding(
        name=name,
        category=category,
        requested=storage.size,
        block=block,
        born_in=None,
        line=None,
        form=storage.form,
        holders=storage.holders,
    )


def _category_and_name(
    storage: HeldStorage | None, seen: ObservedStorage | None
) -> tuple[Category, str | None]:
    """Return a storage's category and name.

    An optimizer's state is named after its parameter.
    """
    name = storage.name if storage else None
    if seen is None:
        return _category(storage), name
    return seen.category, name if seen.of is None else seen.of + without_shape(seen.name)


def _category(storage: HeldStorage | None) -> Category:
    if storage is None:
        return Category.UNKNOWN
    only_graphs = all(way.kind is HolderKind.GRAPH for way in storage.holders)
    return Category.ACTIVATIONS if only_graphs else Category.USER_TENSORS


def _model_storages(namespace: Mapping[str, Any]) -> dict[int, dict[int, ObservedStorage]]:
    """Collect storages of modules and optimizers by card and address."""
    found: dict[int, dict[int, ObservedStorage]] = {}
    names = {
        id(parameter): (name, f".{path}")
        for name, module in tensors.modules_in(namespace)
        for path, parameter in named_parameters(module)
    }

    def note(seen: Iterable[ObservedStorage]) -> None:
        for one in seen:
            found.setdefault(one.device, {})[one.addr] = one

    for _, optimizer in tensors.optimizers_in(namespace):
        note(state_of_optimizer(optimizer, lambda parameter: names.get(id(parameter))))
        note(parameters_of_optimizer(optimizer))
    for _, module in tensors.modules_in(namespace):
        note(tensors.gradients_of_module(module))
        note(tensors.storages_of_module(module))
    return found
