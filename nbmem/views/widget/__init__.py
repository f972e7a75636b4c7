"""The explorer as an ipywidgets widget, made with anywidget: `t.widget()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError

if TYPE_CHECKING:
    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.report.analysis.world.world_report import WorldReport
    from nbmem.report.ledger.card_ledger import CardLedger
    from nbmem.report.model import Report
    from nbmem.views.widget.explorer import ExplorerWidget
    from nbmem.views.widget.ranks import RanksWidget

NEEDS = (
    "The widget needs anywidget and Bokeh, and {} is not installed: pip install 'nbmem[widget]'. "
    "Without them a report shows itself as HTML."
)


def explorer_widget(
    report: Report, card_ledger: CardLedger, cells: Sequence[CellDelta] = ()
) -> ExplorerWidget:
    """Make a widget of a report.

    Args:
        report: The report.
        card_ledger: The ledger from which it was read: the widget reads any moment from it.
        cells: The notebook's history, oldest first.

    Raises:
        UsageError: A library is missing.
    """
    try:
        from nbmem.views.widget.explorer import ExplorerWidget
    except ModuleNotFoundError as err:
        raise UsageError(NEEDS.format(err.name)) from None
    return ExplorerWidget(report, card_ledger, cells)


def ranks_widget(world: WorldReport, explorer_of: Callable[[int], ExplorerWidget]) -> RanksWidget:
    """Make a widget of a world.

    Raises:
        UsageError: A library is missing, or no rank wrote a session.
    """
    if not any(row.held for row in world.rows):
        raise UsageError("No rank of this world wrote a session, so there is nothing to explore.")
    try:
        from nbmem.views.widget.ranks import RanksWidget
    except ModuleNotFoundError as err:
        raise UsageError(NEEDS.format(err.name)) from None
    return RanksWidget(world, explorer_of)
