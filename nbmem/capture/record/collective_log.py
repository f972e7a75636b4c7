"""Record the memory that FSDP holds inside a forward or a backward."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nbmem.capture.tensors.tensors import ObservedStorage, observe, without_torch_function
from nbmem.core.session.tensor_names import common_path

if TYPE_CHECKING:
    from nbmem.capture.distributed.fsdp import CollectiveTensor
    from nbmem.capture.record.counter_samples import CounterLog
    from nbmem.capture.record.hook_event_log import HookEventLog
    from nbmem.capture.record.tensor_labels import TensorLabelLog


class CollectiveLog:
    """Records storages held by FSDP, with a counter sample for each report.

    The reports come from distributed.collectives.Collectives.

    Args:
        hook_events: Admits one thread at a time.
        counter_samples: Takes the counter samples.
        tensor_labels: Stores the storages.
    """

    def __init__(
        self, hook_events: HookEventLog, counter_samples: CounterLog, tensor_labels: TensorLabelLog
    ) -> None:
        self._hook_events = hook_events
        self._counter_samples = counter_samples
        self._tensor_labels = tensor_labels

    def holds(self, found: Iterable[CollectiveTensor]) -> None:
        """Record what FSDP holds now, in the thread that holds it."""
        if self._counter_samples.full:
            return
        with self._hook_events.alone() as heard, without_torch_function():
            seen = list(self._see(found)) if heard else []
            if seen:
                self._tensor_labels.record_transient(self._counter_samples.take(), seen)

    def _see(self, found: Iterable[CollectiveTensor]) -> Iterator[ObservedStorage]:
        storages: dict[tuple[int, int], list[tuple[ObservedStorage, CollectiveTensor]]] = {}
        for held in found:
            before = "" if held.of is None else " "
            seen = observe(held.tensor, held.category, f"{before}{held.what}")
            if seen is not None and held.of is None:
                yield seen
            elif seen is not None:
                storages.setdefault(seen[:2], []).append((seen, held))
        for shown in storages.values():
            seen, held = shown[0]
            if len(shown) > 1:  # one storage for several parameters: without a form of its own
                seen = seen._replace(name=f" {held.what}")
                held = held._replace(to=common_path([one.to for _, one in shown]))
            yield seen._replace(of=ShardedName(held, self._tensor_labels))


class ShardedName:
    """A name for storage of a sharded parameter, resolved at the end.

    The parameter is not kept alive. FSDP knows a path from its own root. The module that contains
    the root is known only at the end of the recording.
    """

    __slots__ = ("_key", "_path", "_ref", "_tensor_labels", "_to")

    def __init__(self, held: CollectiveTensor, tensor_labels: TensorLabelLog) -> None:
        self._key, self._ref = id(held.of), weakref.ref(held.of)
        self._path, self._to = held.path, held.to
        self._tensor_labels = tensor_labels

    @property
    def name(self) -> str:
        """Path of the parameter below the notebook's name for the model."""
        path = self._tensor_labels.owners.path_by(self._key, self._ref)
        if path is None or not path.endswith(self._path):
            return self._to or "sharded parameters"
        root = path.removesuffix(self._path).rstrip(".")
        return f"{root}.{self._to}".rstrip(".")
