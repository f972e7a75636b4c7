"""What FSDP holds inside a forward or a backward, seen there and named when all is known."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from nbmem.capture.tensors.tensors import quiet, see
from nbmem.core.session.tensor_names import common_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbmem.capture.distributed.fsdp import Held
    from nbmem.capture.record.counter_samples import MarkLog
    from nbmem.capture.record.hook_event_log import TurnLog
    from nbmem.capture.record.tensor_labels import IdentityLog
    from nbmem.capture.tensors.tensors import Seen


class CollectiveLog:
    """Hears what FSDP holds (probes.collectives.Collectives): a reading for each that is told.

    Args:
        turns: Lets one thread be heard at a time.
        marks: Takes the readings.
        identities: Keeps what is seen.
    """

    def __init__(self, turns: TurnLog, marks: MarkLog, identities: IdentityLog) -> None:
        self._turns = turns
        self._marks = marks
        self._identities = identities

    def holds(self, found: Iterable[Held]) -> None:
        """See what is held now, in the thread that holds it."""
        if self._marks.full:
            return
        with self._turns.alone() as heard, quiet():
            seen = list(self._see(found)) if heard else []
            if seen:
                self._identities.passing(self._marks.take(), seen)

    def _see(self, found: Iterable[Held]) -> Iterator[Seen]:
        storages: dict[tuple[int, int], list[tuple[Seen, Held]]] = {}
        for held in found:
            before = "" if held.of is None else " "
            seen = see(held.tensor, held.category, f"{before}{held.what}")
            if seen is not None and held.of is None:
                yield seen
            elif seen is not None:
                storages.setdefault(seen[:2], []).append((seen, held))
        for shown in storages.values():
            seen, held = shown[0]
            if len(shown) > 1:  # one storage for several parameters: it has no form of its own
                seen = seen._replace(name=f" {held.what}")
                held = held._replace(to=common_path([one.to for _, one in shown]))
            yield seen._replace(of=ShardedName(held, self._identities))


class ShardedName:
    """The name of what a sharded parameter belongs to; the parameter is not held.

    FSDP knows a path from its own root, and the recording the module around that by the end only.

    Args:
        held: What is named.
        identities: Knows which module has the parameter.
    """

    __slots__ = ("_identities", "_key", "_path", "_ref", "_to")

    def __init__(self, held: Held, identities: IdentityLog) -> None:
        self._key, self._ref = id(held.of), weakref.ref(held.of)
        self._path, self._to = held.path, held.to
        self._identities = identities

    @property
    def name(self) -> str:
        """The path with the notebook's name for the model before it, as far as they are known."""
        path = self._identities.path_by(self._key, self._ref)
        if path is None or not path.endswith(self._path):
            return self._to or "sharded parameters"
        root = path.removesuffix(self._path).rstrip(".")
        return f"{root}.{self._to}".rstrip(".")
