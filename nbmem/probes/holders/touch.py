"""What the walk may read of tensors and graphs: nothing that another thread may be writing.

Autograd writes gradients and graphs without the interpreter's lock, so that a read beside it can be
of freed memory. Python's own references are safe to follow; what is inside a tensor is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class Touch:
    """Says what may be read.

    Args:
        may_touch: Is asked of each tensor, storage and graph node before anything in it is read;
            None allows all.
        theirs: Ids of tensors that other threads may be working on.
        nothing: Whether nothing at all may be read.
    """

    def __init__(
        self,
        may_touch: Callable[[Any], bool] | None = None,
        theirs: Collection[int] = frozenset(),
        *,
        nothing: bool = False,
    ) -> None:
        self._may_touch = may_touch
        self._theirs = theirs
        self._nothing = nothing

    def storage(self, thing: Any) -> bool:
        """Whether the storage behind a tensor may be read, or a node at all."""
        if self._nothing or id(thing) in self._theirs:
            return False
        return self._may_touch is None or self._may_touch(thing)

    def graph(self, thing: Any) -> bool:
        """Whether the gradient and the graph may be read of what `storage` allows.

        A graph is shared by more tensors than can be told from outside, so where others work on
        any tensor, no graph and no gradient is read.
        """
        del thing
        return not self._theirs

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self._may_touch is None and not self._theirs and not self._nothing


ANYTHING = Touch()
NOTHING = Touch(nothing=True)
