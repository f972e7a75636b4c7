"""Actions that free memory, predicted before and measured after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbmem.api.freeing.perform import perform
from nbmem.report.model import Command

if TYPE_CHECKING:
    from nbmem.core.freed_memory import Freed

__all__ = ["FreedMemory", "free", "perform"]


class FreedMemory:
    """The result of `nbmem.free`, which shows itself.

    Attributes:
        actions: One for each thing that was named, in that order.
    """

    def __init__(self, actions: Sequence[Freed]) -> None:
        self.actions = tuple(actions)

    @property
    def measured(self) -> int:
        """The bytes that were freed, all actions together."""
        return sum(freed.measured for freed in self.actions)

    def __str__(self) -> str:
        from nbmem.views.freed_memory import render_freed

        return render_freed(self.actions)

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        from nbmem.views.freed_memory import render_freed_html

        return {"text/plain": str(self), "text/html": render_freed_html(self.actions)}


def free(*what: str) -> FreedMemory:
    """Free exactly what is named, and measure it.

    It is `%nbmem free` in a notebook; in a script the names are those of `__main__`.

    Args:
        what: "cache", "frameworks" (unused bytes in the pools of CuPy), "traceback", "out" (of
            IPython), or variables and paths that begin with one: `nbmem.free("checkpoint['model']",
            "history")`.

    Raises:
        UsageError: One of them cannot be freed. In that case nothing was freed.
    """
    return FreedMemory(perform(Command(name="free", arguments=what)))
