"""Show a world of ranks in a notebook: a picker and a live explorer.

The explorer below the picker is that of the chosen rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets
import traitlets

from nbmem.core.errors import NbmemError
from nbmem.views.world_sentences import peak_of

if TYPE_CHECKING:
    from nbmem.report.analysis.world.world_report import WorldReport
    from nbmem.views.widget.explorer import ExplorerWidget


class RanksWidget(ipywidgets.VBox):  # type: ignore[misc]
    """A picker of a world's ranks, with the explorer of one at a time.

    Args:
        world: The world; only ranks that wrote a session can be chosen.
        explorer_of: Makes the explorer of a rank, by its number. The rank with the highest peak
            comes first, and an error for it is raised.

    Attributes:
        rank: Number of the rank that is shown; set it, observe it, link it.
        explorer: Its explorer; None where its file cannot be read.
    """

    rank = traitlets.Int()

    def __init__(
        self, world: WorldReport, explorer_of: Callable[[int], ExplorerWidget], **options: Any
    ) -> None:
        # Only a rank with a session has bytes by category.
        rows = [row for row in world.rows if row.held]
        self._explorer_of = explorer_of
        self._numbers = [row.rank.number for row in rows]
        self.explorer: ExplorerWidget | None = None
        self._picker = ipywidgets.Dropdown(
            options=[(f"{row.rank.number}: {peak_of(row)}", row.rank.number) for row in rows],
            description="Rank",
            layout={"width": "max-content"},
        )
        super().__init__(**options)
        highest = max(rows, key=lambda row: row.allocated or 0)
        self.rank = highest.rank.number
        self._picker.value = self.rank
        self._show(explorer_of(self.rank))
        traitlets.link((self, "rank"), (self._picker, "value"))
        self.observe(self._choose, "rank")

    @traitlets.validate("rank")  # type: ignore[untyped-decorator]
    def _check_rank(self, proposal: Any) -> int:
        value: int = proposal["value"]
        if value not in self._numbers:
            raise traitlets.TraitError(f"There is no session of a rank {value} in this world.")
        return value

    def _choose(self, _change: object) -> None:
        before = self.explorer
        try:
            self._show(self._explorer_of(self.rank))
        except NbmemError as err:  # its file was removed or has changed
            self.explorer = None
            self.children = (self._picker, ipywidgets.Label(str(err)))
        if before is not None:
            before.close()

    def _show(self, explorer: ExplorerWidget) -> None:
        self.explorer = explorer
        self.children = (self._picker, explorer)
