"""Hook events: the beginnings and ends of phases."""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple, get_args

Kind = Literal["forward", "inference", "recompute", "backward", "optimizer", "zero_grad"]
_KINDS: tuple[Kind, ...] = get_args(Kind)
_FLAGS = ("begins", "closure", "updated", "computed", "unchanged")


class HookEvent(NamedTuple):
    """A hook event: a phase or a call begins or ends.

    Attributes:
        kind: Kind of phase.
        begins: Whether it begins.
        sample: Index of the counter sample taken then.
        key: Id of the module or the optimizer.
        closure: Whether an optimizer's step begins that runs forward and backward inside.
        thread: Number of the loop; for a recomputation, of the one that waits for the engine.
        updated: Whether the weights were updated by hand just before.
        computed: Whether a graph grew between the thread's last hook event and this one.
        unchanged: Whether weights were certainly not updated since the last backward.
    """

    kind: Kind
    begins: bool
    sample: int
    key: int = 0
    closure: bool = False
    thread: int = 0
    updated: bool = False
    computed: bool = False
    unchanged: bool = False


class HookEvents:
    """A list of hook events, stored as columns of 26 bytes per event.

    Python's garbage collector counts none of them. One thread adds at a time, and others may read
    meanwhile.
    """

    def __init__(self) -> None:
        self._columns = _Columns(array("B"), array("B"), array("q"), array("q"), array("q"))

    def append(self, hook_event: HookEvent) -> None:
        """Append a hook event."""
        columns = self._columns
        columns.kind.append(_KINDS.index(hook_event.kind))
        flags = (getattr(hook_event, name) for name in _FLAGS)
        columns.flags.append(sum(flag << bit for bit, flag in enumerate(flags)))
        columns.sample.append(hook_event.sample)
        columns.key.append(hook_event.key)
        columns.thread.append(hook_event.thread)  # last: its length is the list's

    def drop(self, count: int) -> None:
        """Remove the first events."""
        self._columns = _Columns(*(column[count:] for column in self._columns))

    def __len__(self) -> int:
        """Return the number of hook events."""
        return len(self._columns.thread)

    def part(self, first: int = 0) -> list[HookEvent]:
        """Return the hook events from an index on."""
        columns = self._columns
        return [columns.hook_event(index) for index in range(first, len(columns.thread))]


class _Columns(NamedTuple):
    """Hook events as columns, one array per field."""

    kind: array[int]
    flags: array[int]
    sample: array[int]
    key: array[int]
    thread: array[int]

    def hook_event(self, index: int) -> HookEvent:
        flags = self.flags[index]
        return HookEvent(
            kind=_KINDS[self.kind[index]],
            sample=self.sample[index],
            key=self.key[index],
            thread=self.thread[index],
            **{name: bool(flags >> bit & 1) for bit, name in enumerate(_FLAGS)},
        )
