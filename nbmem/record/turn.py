"""One change of phase, as a hook told it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["forward", "inference", "recompute", "backward", "optimizer", "zero_grad"]


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
