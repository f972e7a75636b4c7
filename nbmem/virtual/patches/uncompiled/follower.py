"""A planned run followed beside what it does: what its regions would take in eager mode instead.

Known limits: nothing is said where a region goes on with what another computed, for which of the
two modes keeps that is not known; nor of regions in CUDA graphs, whose pools are no step's.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, Patches
from nbmem.virtual.patches.uncompiled.captured import Captured, Took

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbmem.virtual.hardware.instead import Instead, Most
    from nbmem.virtual.operators.dispatch import CardMode

_PART_OF = "_nbmem_part_of"
_MOST_FORMS = 16
"""A region is run again for each shape of its arguments, up to so many."""


class _Region:
    """What is known of a region, and which of its forwards wait for backward."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.known: dict[Any, Took | None] = {}
        self.waiting: list[tuple[Most, int]] = []


class Follower:
    """Follows what is planned, from the first region that is compiled on.

    Args:
        mode: The mode of the cards.
        patches: What stands in for torch's functions.
    """

    def __init__(self, mode: CardMode, patches: Patches) -> None:
        self._mode, self._patches = mode, patches
        self._region: _Region | None = None

    @contextlib.contextmanager
    def planning(self, graph: Any, inputs: Sequence[Any]) -> Iterator[None]:
        """What is compiled meanwhile are a region's parts."""
        before, self._region = self._region, None
        try:
            captured = Captured(graph, inputs)
            if captured.follows:
                self._not_known("a region goes on with what was computed before it")
            else:
                self._region = _Region(captured)
        except Exception as err:  # noqa: BLE001 - a figure beside the run is no part of it
            self._not_known(f"{type(err).__name__}: {err}")
        try:
            yield
        finally:
            self._region = before

    def patches(self) -> list[Patch]:
        """What a compiled graph passes by: when it is made, and at each call."""
        from torch._inductor.output_code import CompiledFxGraph

        true_made: Any = CompiledFxGraph.post_compile
        true_call: Any = CompiledFxGraph.__call__
        follower = self

        def made(part: Any, inputs: Any, constants: Any, options: Any) -> None:
            true_made(part, inputs, constants, options)
            region = follower._region
            if region is not None:
                if options["cudagraphs"]:
                    follower._not_known("CUDA graphs")
                else:
                    way = follower._backward if options["is_backward"] else follower._forward
                    vars(part)[_PART_OF] = way, region

        def call(part: Any, inputs: Any) -> Any:
            way, region = vars(part).get(_PART_OF, (None, None))
            instead = follower._instead
            if way is None or instead is None:
                return true_call(part, inputs)
            return way(instead, region, inputs, lambda: true_call(part, inputs))

        return [
            Patch(CompiledFxGraph, "post_compile", made),
            Patch(CompiledFxGraph, "__call__", call),
        ]

    @property
    def _instead(self) -> Instead | None:
        machine = self._mode.machine
        return None if machine is None else machine.current.instead

    def _forward(
        self, instead: Instead, region: _Region, inputs: Sequence[Any], act: Callable[[], Any]
    ) -> Any:
        found = self._took(region, inputs)
        if found is None:
            return act()
        instead.beside = max(instead.beside, found.beside)
        result, added = instead.run(act, found.forward, found.kept)
        if found.backward is not None:
            region.waiting.append((found.backward, added))
        else:
            instead.forget(added)
        return result

    def _backward(
        self, instead: Instead, region: _Region, _inputs: Sequence[Any], act: Callable[[], Any]
    ) -> Any:
        if not region.waiting:
            return act()
        most, added = region.waiting.pop()
        try:
            return instead.run(act, most)[0]
        finally:
            instead.forget(added)

    def _took(self, region: _Region, inputs: Sequence[Any]) -> Took | None:
        key: Any = ()
        if region.captured.dynamic:
            key = tuple(tuple(one.size()) if is_virtual(one) else type(one) for one in inputs)
        if key not in region.known:
            region.known[key] = None
            args = region.captured.of(inputs)
            if len(region.known) > _MOST_FORMS or args is None:
                self._not_known("other arguments than were captured")
                return None
            try:
                region.known[key] = region.captured.took(self._mode, self._patches, args)
            except Exception as err:  # noqa: BLE001 - a figure beside the run is no part of it
                self._not_known(f"{type(err).__name__}: {err}")
        return region.known[key]

    def _not_known(self, why: str) -> None:
        instead = self._instead
        if instead is not None:
            instead.unknown = instead.unknown or why
