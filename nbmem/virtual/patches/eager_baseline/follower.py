"""Eager-mode estimate of planned regions, beside their own run.

The storages that a region passes on to another, or takes from one, are followed one by one.
Autograd in eager mode, the plan or the program may hold such a storage. Eager mode often holds
another one than the plan's run.

Known limit: regions in CUDA graphs are not estimated, since their pools belong to no step.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nbmem.allocator.rounding import round_size
from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.eager_baseline.captured_graphs import (
    CapturedRegion,
    RegionMemory,
    storage_of,
)
from nbmem.virtual.patches.patcher import Patch, Patches

if TYPE_CHECKING:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    from nbmem.virtual.dispatch.card_mode import CardMode
    from nbmem.virtual.hardware.eager_baseline import EagerEstimate, PeakBytes
    from nbmem.virtual.hardware.eager_references import SavedStorages

_PART_OF = "_nbmem_part_of"
_MOST_FORMS = 16
"""A region is run again for each shape of its arguments, up to so many."""


class _Region:
    """Results about a region, and its forwards that wait for backward."""

    def __init__(self, captured: CapturedRegion) -> None:
        self.captured = captured
        self.known: dict[Any, RegionMemory | None] = {}
        self.waiting: list[tuple[PeakBytes, int, Callable[[], None]]] = []


class Follower:
    """Follows planned regions, from the first one that is compiled on."""

    def __init__(self, mode: CardMode, patches: Patches) -> None:
        self._mode, self._patches = mode, patches
        self._region: _Region | None = None

    @contextlib.contextmanager
    def planning(self, graph: Any, inputs: Sequence[Any]) -> Iterator[None]:
        """Note graphs that are compiled in a `with` block as a region's parts."""
        before, self._region = self._region, None
        try:
            self._region = _Region(CapturedRegion(graph, inputs))
        except Exception as err:  # noqa: BLE001 - a figure beside the run is no part of it
            self._not_known(f"{type(err).__name__}: {err}")
        try:
            yield
        finally:
            self._region = before

    def excluding(self) -> contextlib.AbstractContextManager[None]:
        """Exclude a `with` block from the eager-mode estimate.

        What is timed while something is compiled takes nothing in eager mode.
        """
        instead = self._estimate
        return contextlib.nullcontext() if instead is None else instead.excluding()

    def patches(self) -> list[Patch]:
        """Return patches of a compiled graph's creation and of its calls."""
        from torch._inductor.output_code import CompiledFxGraph

        original_made: Any = CompiledFxGraph.post_compile
        original_call: Any = CompiledFxGraph.__call__
        follower = self

        def made(part: Any, inputs: Any, constants: Any, options: Any) -> None:
            original_made(part, inputs, constants, options)
            region = follower._region
            if region is not None:
                if options["cudagraphs"]:
                    follower._not_known("CUDA graphs")
                else:
                    way = follower._backward if options["is_backward"] else follower._forward
                    vars(part)[_PART_OF] = way, region

        def call(part: Any, inputs: Any) -> Any:
            way, region = vars(part).get(_PART_OF, (None, None))
            instead = follower._estimate
            if way is None or instead is None:
                return original_call(part, inputs)
            return way(instead, region, inputs, lambda: original_call(part, inputs))

        return [
            Patch(CompiledFxGraph, "post_compile", made),
            Patch(CompiledFxGraph, "__call__", call),
        ]

    @property
    def _estimate(self) -> EagerEstimate | None:
        machine = self._mode.machine
        return None if machine is None else machine.current.eager_estimate

    def _forward(
        self, instead: EagerEstimate, region: _Region, inputs: Sequence[Any], act: Callable[[], Any]
    ) -> Any:
        found = self._took(region, inputs)
        if found is None:
            return act()
        instead.beside = max(instead.beside, found.beside)
        given = region.captured.of(inputs) or ()
        entered = {number: _known(given[number]) for number in region.captured.follows}
        result, added = instead.run(act, found.forward, found.kept)
        if found.backward is not None:
            end = self._hold(instead.lasting, found, entered, result)
            region.waiting.append((found.backward, added, end))
        else:
            instead.forget(added)
        return result

    def _backward(
        self,
        instead: EagerEstimate,
        region: _Region,
        _inputs: Sequence[Any],
        act: Callable[[], Any],
    ) -> Any:
        if not region.waiting:
            return act()
        most, added, end = region.waiting.pop()
        try:
            return instead.run(act, most)[0]
        finally:
            instead.forget(added)
            end()

    def _took(self, region: _Region, inputs: Sequence[Any]) -> RegionMemory | None:
        key: Any = ()
        if region.captured.dynamic:
            key = tuple(tuple(one.size()) if is_virtual(one) else type(one) for one in inputs)
        if key not in region.known:
            region.known[key] = None
            args = region.captured.of(inputs)
            if len(region.known) > _MOST_FORMS or args is None:
                self._not_known("other arguments than were captured")
                region.captured.forget()
                return None
            try:
                region.known[key] = region.captured.measure(self._mode, self._patches, args)
            except Exception as err:  # noqa: BLE001 - a figure beside the run is no part of it
                self._not_known(f"{type(err).__name__}: {err}")
        return region.known[key]

    def _hold(self, *facts: Any) -> Callable[[], None]:
        try:
            return _hold(*facts)
        except Exception as err:  # noqa: BLE001 - a figure beside the run is no part of it
            self._not_known(f"{type(err).__name__}: {err}")
            return lambda: None

    def _not_known(self, why: str) -> None:
        instead = self._estimate
        if instead is not None:
            instead.unknown = instead.unknown or why


def _known(tensor: torch.Tensor) -> tuple[StorageWeakRef, int]:
    return storage_of(tensor), round_size(tensor.untyped_storage().nbytes())


def _hold(
    lasting: SavedStorages,
    found: RegionMemory,
    entered: dict[int, tuple[StorageWeakRef, int]],
    results: Sequence[Any],
) -> Callable[[], None]:
    """Hold the storages that a forward keeps for its backward.

    They are among the storages that it took and those that it returned. Returns the function
    that releases them.
    """
    made = [_known(one) for one in results if is_virtual(one)]
    times = Counter(reference.cdata for reference, _ in made)
    given = {reference.cdata for reference, _ in entered.values()}
    kept = [entered[number] for number in found.inputs]
    kept += [_known(results[number]) for number in found.results if is_virtual(results[number])]
    # The plan returns what it saves behind what the program gets.
    planned = [one for one in made if times[one[0].cdata] > 1 or one[0].cdata in given]
    lasting.mark_used(reference for reference, _ in entered.values())
    return lasting.hold(kept, planned)
