"""Open a folder of ranks as one world: `nbmem.open("runs/today/")`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.api import tracing
from nbmem.core.errors import UsageError
from nbmem.core.files.size_limits import Limits
from nbmem.core.files.untrusted_input import is_folder
from nbmem.core.session.ranks import numbers_text

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.api.tracing import Trace
    from nbmem.report.analysis.world.world_report import WorldReport
    from nbmem.views.widget.ranks import RanksWidget


class World:
    """The ranks of one run and their common report.

    Attributes:
        report: The data of every view of the world.
    """

    def __init__(self, report: WorldReport, max_size: int | str | None = None) -> None:
        self.report = report
        self._max_size = max_size

    def rank(self, number: int) -> Trace:
        """Open the session of one rank.

        Raises:
            NbmemError: There is none, or the rank did not end and left only its journal.
        """
        row = next((row for row in self.report.rows if row.rank.number == number), None)
        if row is None:
            there = numbers_text([row.rank.number for row in self.report.rows])
            raise UsageError(f"There is no file of rank {number}; there is one of {there}.")
        if not row.held:
            why = "used no card" if row.state in {"finished", "failed"} else "came to no end"
            raise UsageError(
                f"Rank {number} {why}, so it has no report of its own: what it wrote stands in the "
                "report of the world."
            )
        return tracing.open(row.path, max_size=self._max_size)

    def to_json(self) -> dict[str, Any]:
        """Return the world in its stable JSON form (docs/json.md)."""
        from nbmem.views.exports.world import world_json

        return world_json(self.report)

    def widget(self) -> RanksWidget:
        """Return the explorer with a picker of ranks.

        It needs `pip install 'nbmem[widget]'`. Its trait `rank` is the shown rank, which can be
        observed, set and linked.

        Raises:
            NbmemError: A library is missing, or no rank wrote a session.
        """
        from nbmem.views.widget import ranks_widget

        return ranks_widget(self.report, lambda number: self.rank(number).widget())

    def to_page(self) -> str:
        """Render a standalone HTML page with each rank's explorer."""
        from nbmem.views.exports.world_page import world_page

        return world_page(self.report, lambda number: self.rank(number).report())

    def __str__(self) -> str:
        from nbmem.views.world import render_world

        return render_world(self.report)

    def __repr__(self) -> str:
        return f"<World of {self.report.size} ranks: {self.report.title!r}>"

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        from nbmem.views.world import render_world, render_world_html

        return {
            "text/plain": render_world(self.report),
            "text/html": render_world_html(self.report),
        }


def open(path: str | Path, *, max_size: int | str | None = None) -> Trace | World:  # noqa: A001 - nbmem.open
    """Open a session, a torch snapshot or a folder of ranks.

    The ranks of a run wrote into the folder.

    Args:
        path: The file (gives a `Trace`) or the folder (gives a `World`).
        max_size: Limit on each file, packed and unpacked: bytes, or "4GiB"; None for 1 GiB.

    Raises:
        NbmemError: It is missing, too large, truncated, hostile or of another kind.
    """
    return open_world(path, max_size) if is_folder(path) else tracing.open(path, max_size=max_size)


def open_world(path: str | Path, max_size: int | str | None = None) -> World:
    """Open a folder of ranks; arguments and errors as of `open`."""
    from nbmem.report.analysis.world import read_world

    return World(read_world(path, Limits.of(max_size)), max_size)
