"""Record which storage is which tensor, as observed at counter samples.

Observations are collected while the cell runs and placed among the events later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbmem.capture.distributed.parallel_wrappers import (
    ddp_buckets,
    is_sharded,
    shards_and_gathered,
    weights_and_buffers,
)
from nbmem.capture.record.gradient_log import GradientLog
from nbmem.capture.record.parameter_owners import ParameterOwners
from nbmem.capture.record.saved_tensor_log import SavedTensorLog
from nbmem.capture.record.storage_registry_log import StorageLog
from nbmem.capture.record.tensor_label_rows import IdentityRows
from nbmem.capture.record.time_budget import TimeBudget
from nbmem.capture.record.tracked_objects import (
    Footprint,
    ThreadObjects,
    TrackedObject,
    live_objects,
    state_footprint,
)
from nbmem.capture.tensors import frames, modules, tensors
from nbmem.capture.tensors.active_registry import active_registry
from nbmem.capture.tensors.kv_caches import CacheCollector, CacheLog, given_caches, without_caches
from nbmem.capture.tensors.module_tree import tree_of
from nbmem.capture.tensors.optimizers import (
    OtherOptimizers,
    parameters_of_optimizer,
    state_of_optimizer,
)

if TYPE_CHECKING:
    from nbmem.capture.record.training_loop import TrainingLoop

MAX_ROWS = 300_000
"""Limit of observations. Later tensors are distinguished by allocation and lifetime (with a
note)."""
MAX_WALKS = 8
"""How often a state that changes in each step is recorded; later steps are like those."""
_LAYERS = "calls of layers"
STEP = 1_000
"""Tensors that are recorded at once: a few milliseconds."""


class TensorLabelLog:
    """Records modules, optimizers and tensors without holding any of them.

    Gradients are read for each thread: those of parameters that its loop's modules and optimizers
    have used. Objects that the notebook names belong to the home thread, which runs the cells,
    until another thread uses them.

    Attributes:
        full: Whether observations were left out.
        rows: What was observed.
        owners: The modules and optimizers, and which of them has a parameter.
        graphs: Reads what graphs have saved.
        gradient_log: Reads gradients.
        storage_log: Holds the storage registry for memory that is on no CUDA card.
        time_budget: Limits how many graphs are read where no allocator history covers the memory.
    """

    def __init__(self) -> None:
        self.full = False
        self.rows = IdentityRows()
        self.owners = ParameterOwners()
        self.storage_log = StorageLog()
        self.time_budget = TimeBudget()
        self.graphs = SavedTensorLog(self.owners, self.rows, self.time_budget)
        self.gradient_log = GradientLog(self.owners, self.rows, self.time_budget)
        self._objects_by_loop: dict[int, ThreadObjects] = {}
        self._home: int | None = None  # the home thread's loop, if it trains
        self._named: set[int] = set()
        self._walked: dict[int, Footprint] = {}
        self._sharded: set[int] = set()
        self._states: dict[int, tuple[tuple[int, ...], int]] = {}
        self._caches = CacheLog()
        self._earlier = 0  # how often graphs of variables were read
        self._sites = frames.CallSites()

    # --- while the cell runs

    def begin_loop(self, loop: int) -> None:
        """Register a thread that begins to train, under this number."""
        self._objects_by_loop[loop] = ThreadObjects()

    def called(
        self,
        sample: int,
        module: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        loop: TrainingLoop,
    ) -> None:
        """Record the module and the inputs of a call that has ended.

        Layers that a program calls one by one inside a forward are recorded within the time budget.
        """
        if id(module) == loop.root:
            self._record_call(sample, module, args, kwargs, loop)
            return
        with self.time_budget.spend(_LAYERS) as granted:
            if granted:
                self._record_call(sample, module, args, kwargs, loop)

    def _record_call(
        self,
        sample: int,
        module: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        loop: TrainingLoop,
    ) -> None:
        with self.storage_log.dating_back_to(loop.called_at):
            self.module(sample, module, loop.number)
            self.inputs(sample, args, kwargs)

    def begins(self, sample: int, module: Any, loop: TrainingLoop) -> None:
        """Record a module's tensors at its first call, before it runs.

        The call may replace their memory.
        """
        if id(module) not in self._walked:
            self._add(sample, weights_and_buffers(module), self.owners.module(module))
        self._record_unused_forward(sample, loop)

    def module(self, sample: int, module: Any, loop: int) -> None:
        """Record a module's weights and buffers, unless they have not moved.

        From then on the module and its parameters belong to this loop.
        """
        walked = self._walked.get(id(module))
        moved = walked is None or not walked.holds()
        known = self.owners.module(module)
        if moved:
            tree = tree_of(module)
            self.owners.learn_module(known, module, tree)
            self._walked[id(module)] = Footprint(tree)
            self._add(sample, weights_and_buffers(module, tree), known)
            self._add(sample, ddp_buckets(module), known)
            (self._sharded.add if is_sharded(module) else self._sharded.discard)(id(module))
        elif id(module) in self._sharded:
            # What FSDP gathers is new memory in each step, even at the same address.
            self._add(sample, shards_and_gathered(module), known)
        used = self._objects_by_loop[loop]
        if used.is_new(module) or moved:
            found = (known.tree or tree_of(module)).parameters_once()
            used.parameters.update(id(p) for p in found if not tensors.is_wrapped(p))

    def record_transient(self, sample: int, seen: Iterable[tensors.ObservedStorage]) -> None:
        """Record short-lived storages within a phase, many times a step.

        They may fill half of MAX_ROWS.
        """
        if self.rows.count < MAX_ROWS // 2:
            self._extend(sample, seen, None)

    def inputs(self, sample: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record a call's inputs, and the names of tensors in its callers.

        The callers' variables are read at each new call site. Elsewhere they are read only within
        the time budget.
        """
        caches = given_caches(args, kwargs)
        if caches:
            self.caches(sample, caches)
            args, kwargs = without_caches(args, kwargs, caches)
        del caches
        self._add(sample, tensors.inputs_of_call(args, kwargs))
        if self._sites.is_new():
            kept: list[Any] = []
            self._variables(sample, kept.append)
            self._earlier_graphs(sample, kept)
        elif active_registry() is not None:
            self._record_variables_in_budget(sample)

    def caches(self, sample: int, caches: Iterable[Any]) -> None:
        """Record what caches of language models hold, if it has changed."""
        self._add(sample, self._caches.changed(caches))

    def gradients(
        self, sample: int, loop: int, others: Mapping[int, bool], *, at_end: bool = False
    ) -> list[Any]:
        """Record the gradients of a thread's parameters.

        It runs once for each backward, so it must be fast.

        Args:
            sample: The counter sample at the backward's end.
            loop: The loop to which the backward belongs.
            others: Loops of other live threads, and whether each is inside a call now.
            at_end: Whether this is a cell's start or end, where every named model is read.

        Returns:
            A few of the parameters, which must not be retained.
        """
        if not self._has_room():
            return []
        own = self._objects_by_loop[loop].parameters
        if loop == self._home:
            own = own.union(
                self._named.difference(*(self._objects_by_loop[o].parameters for o in others)),
                self.gradient_log.of_idle_models(
                    self._walked,
                    [self._objects_by_loop[other].parameters for other in others],
                    few=not at_end,
                ),
            )
        for other, busy in others.items():
            own = own - self._objects_by_loop[other].parameters if busy else own
        return self.gradient_log.record(sample, own)

    def saved(
        self, sample: int, outputs: Iterable[Any], forward: tuple[Any, ...] | None = None
    ) -> None:
        """Record what a graph has saved for backward (SavedTensorLog)."""
        if self._has_room() and self.graphs.record(sample, outputs, forward):
            self._variables(sample)

    def _variables(self, sample: int, made: Callable[[Any], None] | None = None) -> None:
        """Record the tensors in variables of this thread's running functions.

        These names end with their function's name.
        """
        if self._has_room():
            others, caches = OtherOptimizers(self._states), CacheCollector()
            names = self.owners.callbacks(caches.also(others.add_candidate), made)
            variables = frames.caller_variables()
            self._extend(sample, tensors.in_frames(variables, names), None)
            self.caches(sample, caches.pop())
            self._extend(sample, others.pop_state(self.owners.named_member), None)
            for where, local in variables:
                if where:
                    self.owners.add_local_optimizers(local, where.removeprefix(" of "))

    def _earlier_graphs(self, sample: int, kept: list[Any]) -> None:
        """Record what graphs of the loop's variables keep alive.

        A backward may never run for these graphs, as for a GAN that samples images without no_grad.
        If several threads train, a graph may belong to another one, so none is read.
        """
        if kept and len(self._objects_by_loop) == 1 and self._earlier < MAX_WALKS:
            self._earlier += 1
            self.saved(sample, kept)

    def _record_variables_in_budget(
        self, sample: int, made: Callable[[Any], None] | None = None
    ) -> None:
        """Record the variables' tensors if the time budget allows it.

        This includes steps like earlier ones, where no allocator history shows what a list has
        gained.
        """
        with self.time_budget.spend("variables") as granted:
            if granted:
                self._variables(sample, made)

    def _record_unused_forward(self, sample: int, loop: TrainingLoop) -> None:
        """Record what graphs keep of a forward that no backward has followed.

        It applies where there is no allocator history. The graphs are those that this loop's
        variables hold, such as a sum of losses or a list of results.
        """
        if loop.waits_since is None or active_registry() is None or len(self._objects_by_loop) > 1:
            return
        kept: list[Any] = []
        self._record_variables_in_budget(sample, kept.append)
        with self.storage_log.dating_back_to(loop.waits_since):
            self.saved(sample, kept)

    def track_optimizer(self, optimizer: Any, loop: int) -> None:
        """Track an optimizer and its parameters weakly, for one loop."""
        self.owners.learn_optimizer(optimizer)
        used = self._objects_by_loop[loop]
        if used.is_new(optimizer):
            for group in modules.param_groups(optimizer):
                used.parameters.update(map(id, modules.parameters_of_group(group)))

    def state(self, sample: int, optimizer: Any) -> None:
        """Record an optimizer's state, unless it has not changed place.

        A state that is replaced in each step is recorded at most MAX_WALKS times.
        """
        footprint = state_footprint(optimizer)
        before, walks = self._states.get(id(optimizer), ((), 0))
        if before[:1] != footprint[:1] or (before != footprint and walks < MAX_WALKS):
            self._states[id(optimizer)] = footprint, walks + 1
            known = self.owners.optimizer(optimizer)
            self._add(sample, state_of_optimizer(optimizer, self.owners.named_member), known)
            self._add(sample, parameters_of_optimizer(optimizer, self.owners.owner_of), known)

    def record_everything(
        self, sample: int, namespace: Mapping[str, Any], loop: int
    ) -> Iterator[None]:
        """Record all that the notebook names or that was tracked, in steps.

        It runs at a cell's start and end, in possibly many steps. The caller must make sure that no
        other thread uses tensors during a step. Names must have been added to `owners` before.
        """
        self._home = loop
        self._named = set(self.owners.parameters)
        yield
        others, caches = OtherOptimizers(), CacheCollector()
        names = self.owners.callbacks(caches.also(others.add_candidate))
        lasting = self.owners.without_loop_variables(namespace)
        yield from self._add_in_steps(sample, tensors.in_namespace(lasting, names), None)
        legacy = self._caches.like_given(namespace)
        self.caches(sample, [*caches.pop(), *legacy])
        del legacy
        yield from self._add_in_steps(sample, others.pop_state(self.owners.named_member), None)
        for optimizer, known in live_objects(self.owners.optimizers):
            yield from self._add_in_steps(
                sample, state_of_optimizer(optimizer, self.owners.named_member), known
            )
            found = parameters_of_optimizer(optimizer, self.owners.owner_of)
            yield from self._add_in_steps(sample, found, known)
        for module, known in live_objects(self.owners.modules):  # last: the most specific names
            if known.inside is not None and _is_covered_by(module, known.inside[0]):
                continue
            if self.rows.count < 2 * MAX_ROWS:  # whole: the start's list is the end's as well
                self._extend(sample, weights_and_buffers(module, known.tree), known)
            yield
        self.gradients(sample, loop, {}, at_end=True)

    def _add_in_steps(
        self, sample: int, seen: Iterator[tensors.ObservedStorage], owner: TrackedObject | None
    ) -> Iterator[None]:
        while part := list(islice(seen, STEP)):
            if self.rows.count < 2 * MAX_ROWS:  # those at the end have a limit of their own
                self._extend(sample, part, owner)
            yield

    def owners_in_use(self) -> set[int] | None:
        """Return ids of the entries of called modules and their containers.

        None if no module was called.
        """
        if not self._walked:
            return None
        called = (self.owners.modules[key] for key in self._walked if key in self.owners.modules)
        return {id(around) for one in called for around in one.with_all_around()}

    def _add(
        self,
        sample: int,
        seen: Iterable[tensors.ObservedStorage],
        owner: TrackedObject | None = None,
    ) -> None:
        if self._has_room():
            self._extend(sample, seen, owner)

    def _extend(
        self, sample: int, seen: Iterable[tensors.ObservedStorage], owner: TrackedObject | None
    ) -> None:
        self.rows.add(sample, seen if isinstance(seen, list) else list(seen), owner)

    def notes(self) -> Iterator[str]:
        """Yield sentences about what was left out."""
        if self.full:
            yield (
                f"More than {MAX_ROWS} tensors were seen; later ones are told apart by their "
                "births and lifetimes alone."
            )
        yield from self.graphs.notes()
        if passed_over := self.time_budget.refused[_LAYERS]:
            yield (
                f"{passed_over} calls of layers were too quick to look at each at a small price: "
                "their weights have the names that the notebook gives them, or none."
            )

    def backwards_unread(self) -> int:
        """Return the number of backward passes whose graphs were not read.

        They were too fast for the time budget.
        """
        return sum(n for kind, n in self.time_budget.refused.items() if isinstance(kind, tuple))

    def _has_room(self) -> bool:
        self.full = self.full or self.rows.count >= MAX_ROWS
        return not self.full


def _is_covered_by(module: Any, outer: TrackedObject) -> bool:
    """Return True if recording an outer module covers this one."""
    return outer.ref() is not None and outer.tree is not None and id(module) in outer.tree.paths
