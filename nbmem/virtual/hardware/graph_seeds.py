"""Seed and offset of generators, kept on the card for graph replays.

Two numbers of 8 bytes for each generator (aten/src/ATen/cuda: CUDAGeneratorImpl.cpp,
CUDAGraph.cpp; 2.12 was not tested):

- Up to torch 2.12 a generator has them once, from the first graph that it is registered with to the
  last.
- In 2.13 each graph has its own, from its capture on.
- Since 2.14 only for generators that it draws from; registering does nothing.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU

_BYTES = 8


class SeedAndOffset:
    """The seed and offset of one generator, shared by some graphs."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu
        self._addresses = [gpu.take(_BYTES, stream=0) for _ in range(2)]
        self._users = 0

    def join(self) -> None:
        """Add one graph to the users."""
        self._users += 1

    def leave(self) -> None:
        """Remove one graph from the users; free the memory after the last one."""
        self._users -= 1
        while not self._users and self._addresses:
            self._gpu.give(self._addresses.pop(0))

    @property
    def lives(self) -> bool:
        """True while a graph uses them."""
        return self._users > 0


class GraphSeeds:
    """The generator states that one graph uses."""

    def __init__(self, graph: Any, gpu: VirtualGPU) -> None:
        self._graph = weakref.ref(graph)
        self._gpu = gpu
        self._rules = gpu.rules
        self._of: dict[Any, weakref.finalize[..., Any] | None] = {}

    def register(self, generator: Any) -> None:
        """Register a generator with the graph; repeated states count once."""
        if self._rules.graph_seeds_when_drawn:
            return
        state = generator.graphsafe_get_state()
        if self._rules.graph_seeds_shared:
            self._take(state)
        else:
            self._of.setdefault(state)

    def begin(self) -> None:
        """Begin the capture; torch registers the card's default generator."""
        self.register(torch.cuda.default_generators[self._gpu.index])
        for state in self._of:
            self._take(state)

    def draw(self, generator: Any) -> None:
        """Record a captured random draw; None is the card's default generator."""
        if self._rules.graph_seeds_when_drawn:
            default = torch.cuda.default_generators[self._gpu.index]
            self._take((default if generator is None else generator).graphsafe_get_state())

    def give_back(self) -> None:
        """Release the generator states of a graph that is reset.

        Up to torch 2.12 a graph retains its generators until it is destroyed.
        """
        while self._of and not self._rules.graph_seeds_shared:
            if (leave := self._of.popitem()[1]) is not None:
                leave()

    def _take(self, state: Any) -> None:
        if self._of.get(state) is not None:
            return
        held = getattr(state, "held", None) if self._rules.graph_seeds_shared else None
        if held is None or not held.lives:
            held = state.held = SeedAndOffset(self._gpu)
        held.join()
        self._of[state] = weakref.finalize(self._graph(), held.leave)
