"""The explorer as an ipywidgets widget, made with anywidget: `t.widget()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbmem.core.history import CellDelta
    from nbmem.ledger.books import Books
    from nbmem.report import Report
    from nbmem.views.widget.explorer import ExplorerWidget

NEEDS = (
    "The widget needs anywidget and Bokeh, and {} is not installed: pip install 'nbmem[widget]'. "
    "Without them a report shows itself as HTML."
)


def explorer_widget(
    report: Report, books: Books, cells: Sequence[CellDelta] = ()
) -> ExplorerWidget:
    """Make a widget of a report.

    Args:
        report: The report.
        books: What it was read from: the widget looks at any moment in them.
        cells: The notebook's history, oldest first.

    Raises:
        UsageError: A library is missing.
    """
    try:
        from nbmem.views.widget.explorer import ExplorerWidget
    except ModuleNotFoundError as err:
        raise UsageError(NEEDS.format(err.name)) from None
    return ExplorerWidget(report, books, cells)
