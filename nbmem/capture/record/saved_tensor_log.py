"""Read what graphs of autograd have saved, once for each kind of forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from nbmem.capture.graphs.expected_gradients import expected_gradients
from nbmem.capture.graphs.graph_matching import GraphPattern
from nbmem.capture.graphs.node_modules import NodeModules
from nbmem.capture.graphs.saved_tensors import (
    GraphWalk,
    planned_buffers,
    saved_tensors,
    why_unreadable,
)
from nbmem.capture.tensors.active_registry import active_registry
from nbmem.capture.tensors.autograd_graphs import MAX_DEPTH, edges_of
from nbmem.capture.tensors.running_modules import BACKWARDS, ModuleCalls
from nbmem.core.runtime.interrupts import reraise_if_from_signal

if TYPE_CHECKING:
    from nbmem.capture.record.parameter_owners import ParameterOwners
    from nbmem.capture.record.tensor_label_rows import IdentityRows
    from nbmem.capture.record.time_budget import TimeBudget
    from nbmem.capture.record.tracked_objects import OptimizerParameter, TrackedObject
    from nbmem.capture.tensors.tensors import ObservedStorage

MAX_FORWARDS = 256
"""Kinds of forwards whose graphs are read. With varying lengths each step is another kind."""
MAX_PATTERNS = 4
"""Graphs of one module with which others are compared."""
MAX_KINDS_WITH_VARIABLES = 8
"""Kinds of forwards for which the variables of the running functions are read, too."""


class SavedTensorLog:
    """Records the tensors that graphs have saved for backward.

    Args:
        owners: Says which module has a parameter.
        rows: Takes what was observed.
        time_budget: Limits how many graphs are read where no allocator history covers the memory.

    Attributes:
        unread: Why graphs are no longer read; None while they are.
        deep: Whether a graph had a longer chain of nodes than is followed.
        module_calls: Records which modules create a graph's nodes.
    """

    def __init__(
        self, owners: ParameterOwners, rows: IdentityRows, time_budget: TimeBudget
    ) -> None:
        self.unread: str | None = None
        self.deep = False
        self.module_calls = ModuleCalls()
        self._owners = owners
        self._rows = rows
        self._time_budget = time_budget
        self._patterns: dict[tuple[Any, ...], list[GraphPattern]] = {}
        self._forwards: dict[tuple[Any, ...], bool] = {}  # whether read with the calls inside

    def record(
        self, sample: int, outputs: Iterable[Any], forward: tuple[Any, ...] | None = None
    ) -> bool:
        """Record what a graph has saved for backward.

        A graph is skipped if a forward of the same kind was recorded before.

        Args:
            sample: The counter sample at the backward's beginning, or at the recording's end.
            outputs: Tensors with a graph, or edges of a graph.
            forward: A key shared by forwards with the same allocations. Their names are transferred
                when the recording is read (ledger/repeated_steps.py). None always reads the graph.

        Returns:
            Whether the forward is of one of the first kinds, and new: its functions' variables are
            then to be read, too.
        """
        if self.unread is not None:
            return False
        inside = self.module_calls.ends_in_backward()
        # Without an allocator history, each graph shows what it keeps alive.
        if active_registry() is not None:
            with self._time_budget.spend(forward) as granted:
                if not granted or self._read_by_pattern(sample, outputs, forward):
                    return False
                # No pattern matches: read it even if its key was read before.
                known = None if forward in self._forwards else forward
                return self._read_graph(sample, outputs, known, forward, inside=inside)
        return self._read_graph(sample, outputs, forward, inside=inside)

    def _read_by_pattern(
        self, sample: int, outputs: Iterable[Any], kind: tuple[Any, ...] | None
    ) -> bool:
        """Record a graph's saved tensors by comparing it with known patterns.

        Returns False if it matches none, or if the comparison fails.
        """
        if kind not in self._patterns:
            return False
        try:
            roots = edges_of(outputs)
            for pattern in self._patterns[kind]:
                found = pattern.saved(roots)
                if found is not None:
                    self._rows.add(sample, [_with_owner(seen, owner) for seen, owner in found])
                    return True
        except Exception as err:  # noqa: BLE001 - as for a graph that is read whole, below
            reraise_if_from_signal(err)
        return False

    def _learn_pattern(self, kind: tuple[Any, ...] | None, graph: GraphWalk) -> None:
        """Remember a graph as a pattern for similar ones."""
        if kind is not None and len(self._patterns.setdefault(kind, [])) < MAX_PATTERNS:
            pattern = GraphPattern(graph)
            self._patterns[kind] += [pattern] if pattern.holds else []

    def _read_graph(
        self,
        sample: int,
        outputs: Iterable[Any],
        forward: tuple[Any, ...] | None,
        kind: tuple[Any, ...] | None = None,
        *,
        inside: bool,
    ) -> bool:
        self.module_calls.wanted -= 1
        if forward is not None:
            known = self._forwards.get(forward)
            if known or (known is not None and not inside):
                return False
            if known is None and len(self._forwards) >= MAX_FORWARDS:
                return False
            self._forwards[forward] = inside
            self.module_calls.wanted = BACKWARDS
        self.unread = why_unreadable()
        if self.unread is not None:
            return False
        try:
            calls = NodeModules(self.module_calls.innermost(), self._owners.place_of_module)
            graph = GraphWalk(outputs, self._owners.module_of, calls)
            self.deep = self.deep or graph.graphs.deep
            found = list(saved_tensors(graph))
            if inside:
                self._learn_pattern(kind, graph)
            expected = list(expected_gradients(graph) if forward else ())
            expected += planned_buffers(graph) if forward and active_registry() is None else ()
        except Exception as err:  # noqa: BLE001 - an unknown kind of graph
            reraise_if_from_signal(err)
            self.unread = repr(err)
        else:
            self._rows.add(
                sample, [*(_with_owner(seen, owner) for seen, owner in found), *expected]
            )
        return forward is not None and len(self._forwards) <= MAX_KINDS_WITH_VARIABLES

    def notes(self) -> Iterator[str]:
        """Yield sentences about graphs that were not read."""
        if self.unread is not None:
            yield (
                f"nbmem lost the names of what graphs have saved: {self.unread}. The cell itself "
                "is not affected."
            )
        if self.deep:
            yield (
                f"A graph of more than {MAX_DEPTH} operations in a row was followed only so far: "
                "what is saved further back may be unnamed, and its holders are not told."
            )


def _with_owner(
    seen: ObservedStorage, owner: TrackedObject | OptimizerParameter | None
) -> ObservedStorage:
    """Return an observed tensor with an owner.

    An existing owner is not replaced.
    """
    return seen if owner is None or seen.of is not None else seen._replace(of=owner)
