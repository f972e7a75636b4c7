"""Show reports and other MIME bundles in a cell's output."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import NbmemError, UsageError

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace

logger = logging.getLogger("nbmem")
_STYLE = "line-height:1.35;margin:0;white-space:pre-wrap;word-break:normal"


def why_no_report(trace: Trace, device: int | None) -> str | None:
    """Return why a recording has nothing to show, or None."""
    try:
        require_report(trace, device)
    except NbmemError as err:
        return str(err)
    return None


def require_report(trace: Trace, device: int | None) -> None:
    """Raise an error if a recording has nothing to show.

    Any other fault is ignored here: the output reports it.

    Raises:
        UsageError: The recording has no such card, or none at all.
    """
    try:
        trace.report(device)
    except UsageError:
        raise
    except Exception:
        logger.debug("the report cannot be made", exc_info=True)


def show(
    trace: Trace,
    *,
    device: int | None = None,
    widget: bool = True,
    display_id: str | None = None,
    card_id: str | None = None,
) -> None:
    """Show a recording's report in the cell's output.

    HTML and text are both sent, and the front end chooses.

    Args:
        trace: The recording.
        device: CUDA ordinal of the card; None for the one that held the most.
        widget: Whether to show more than the plain text.
        display_id: Display id of the output that the report replaces; None for a new one.
        card_id: Display id that the explanation of an out-of-memory error gets, or None.
    """
    report = report_bundle(trace, device, widget=widget)
    card = out_of_memory_bundle(trace, device, widget=widget)
    if card is not None:
        show_bundle(card, display_id=card_id)
    show_bundle(report, display_id=display_id, update=display_id is not None)


def out_of_memory_bundle(
    trace: Trace, device: int | None, *, widget: bool
) -> dict[str, Any] | None:
    """Return the explanation of a recording's out-of-memory errors.

    None if it had none.
    """
    with suppress(Exception):  # nothing to report, or a faulty ledger: its bundle says so
        ooms = trace.report(device).ooms
        if ooms:
            from nbmem.views.mime_bundle import oom_bundle

            return _forms(oom_bundle(ooms), widget=widget)
    return None


def report_bundle(trace: Trace, device: int | None, *, widget: bool) -> dict[str, Any]:
    """Return a recording's report as a MIME bundle.

    An out-of-memory error is left out: it has a separate output.
    """
    return _forms(trace._repr_mimebundle_(device=device, ooms=False), widget=widget)


def _forms(bundle: dict[str, Any], *, widget: bool) -> dict[str, Any]:
    return bundle if widget else {"text/plain": bundle["text/plain"]}


def show_bundle(
    bundle: dict[str, Any], *, display_id: str | None = None, update: bool = False
) -> None:
    """Show a MIME bundle in the cell's output (a terminal prints its text).

    Args:
        bundle: What to show.
        display_id: Display id by which the output can be replaced.
        update: Replace the output with that id.
    """
    from IPython.display import display

    if display_id is None:
        display(bundle, raw=True)
    else:
        display(bundle, raw=True, display_id=display_id, update=update)


NEVER_RAN = "its code never ran."
FAULT = "what could not be done is said on its standard error."


def no_report(trace: Trace, why: str) -> dict[str, str]:
    """Return the text that stands in place of a report."""
    own = why.startswith(trace.name)  # an error names the recording by itself
    return {"text/plain": why if own else f"{trace.name} has no report: {why}"}


def text_bundle(text: str) -> dict[str, str]:
    """Return plain text as a MIME bundle, in a fixed-width font."""
    from html import escape

    return {
        "text/plain": text,
        "text/html": f'<pre style="{_STYLE}">{escape(text)}</pre>',
    }
