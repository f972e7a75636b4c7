"""Changes of phase, as hooks told them."""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple, get_args

Kind = Literal["forward", "inference", "recompute", "backward", "optimizer", "zero_grad"]
_KINDS: tuple[Kind, ...] = get_args(Kind)


class Turn(NamedTuple):
    """A hook's word that something begins or ends.

    Attributes:
        kind: What.
        begins: Whether it begins.
        mark: Index of the reading taken then.
        key: Tells one module or optimizer from another.
        closure: Whether an optimizer's step begins inside which forward and backward run.
        thread: Number of the loop; of a recomputation, of the one that waits for the engine.
        updated: Whether the weights were updated by hand just before.
        computed: Whether a graph grew between the thread's last turn and this one.
    """

    kind: Kind
    begins: bool
    mark: int
    key: int = 0
    closure: bool = False
    thread: int = 0
    updated: bool = False
    computed: bool = False


class Turns:
    """A list of turns as columns: 26 bytes each, and nothing that Python's collector counts.

    One thread adds at a time, and others may read meanwhile.
    """

    def __init__(self) -> None:
        self._columns = _Columns(array("B"), array("B"), array("q"), array("q"), array("q"))

    def append(self, turn: Turn) -> None:
        """Add one."""
        columns = self._columns
        columns.kind.append(_KINDS.index(turn.kind))
        flags = (turn.begins, turn.closure, turn.updated, turn.computed)
        columns.flags.append(sum(flag << bit for bit, flag in enumerate(flags)))
        columns.mark.append(turn.mark)
        columns.key.append(turn.key)
        columns.thread.append(turn.thread)  # last: its length is the list's

    def drop(self, count: int) -> None:
        """Leave out the first ones."""
        self._columns = _Columns(*(column[count:] for column in self._columns))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._columns.thread)

    def part(self, first: int = 0) -> list[Turn]:
        """Return those from one on."""
        columns = self._columns
        return [columns.turn(index) for index in range(first, len(columns.thread))]


class _Columns(NamedTuple):
    """Turns, a number of each in each."""

    kind: array[int]
    flags: array[int]
    mark: array[int]
    key: array[int]
    thread: array[int]

    def turn(self, index: int) -> Turn:
        flags = self.flags[index]
        begins, closure, updated, computed = (bool(flags >> bit & 1) for bit in range(4))
        return Turn(
            kind=_KINDS[self.kind[index]],
            begins=begins,
            mark=self.mark[index],
            key=self.key[index],
            closure=closure,
            thread=self.thread[index],
            updated=updated,
            computed=computed,
        )
