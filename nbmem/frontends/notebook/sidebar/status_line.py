"""The line under a traced cell while it runs; the report takes its place.

The report replaces it by the display id. If a cell has cleared its output, the report is displayed
anew, since an update would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.entry_points import entry
from nbmem.core.units import format_bytes
from nbmem.frontends.notebook.display import show_bundle
from nbmem.frontends.notebook.sidebar.output import CellOutput
from nbmem.views.markup import element

if TYPE_CHECKING:
    from nbmem.frontends.sidebar.messages import Sample

INTERVAL_S = 0.5
_STYLE = "font-variant-numeric:tabular-nums;opacity:0.8"


class StatusLine:
    """The status line under one traced cell.

    The cell's thread shows it; the hub's thread renews it.

    Args:
        shell: The kernel's shell.
        title: The trace's title.
        html: Whether HTML is shown besides plain text.
    """

    def __init__(self, shell: Any, title: str, *, html: bool) -> None:
        self._title = title
        self._html = html
        self._output: CellOutput | None = CellOutput(shell)
        self._text = f"{title}: traced"
        self._due = CLOCK.monotonic() + INTERVAL_S
        show_bundle(self._bundle(), display_id=self._output.id)
        self._output.watch()

    @entry("the line under the cell")
    def renew(self, sample: Sample) -> None:
        """Update the line with a sample, if it is due and its text differs."""
        output, text = self._output, _line(self._title, sample)
        if output is None or CLOCK.monotonic() < self._due or text == self._text:
            return
        self._due = CLOCK.monotonic() + INTERVAL_S
        self._text = text
        output.update(self._bundle())

    def end(self) -> CellOutput | None:
        """End the line; return its output, for the report that replaces it."""
        output = self._output
        if output is not None:
            output.unwatch()
        self._output = None
        return output

    def lost(self, _part: str, _err: Exception) -> None:
        """Stop renewing the line after a fault.

        The report replaces it nevertheless.
        """
        self._due = float("inf")

    def _bundle(self) -> dict[str, str]:
        bundle = {"text/plain": self._text}
        if self._html:
            bundle["text/html"] = str(element("div", self._text, style=_STYLE))
        return bundle


def _line(title: str, sample: Sample) -> str:
    """Format a sample: `train: forward, step 3; 2.10 GiB allocated`."""
    where = [sample.phase] if sample.phase else []
    where += [f"step {sample.step}"] if sample.step is not None else []
    bytes_ = [
        f"{f'card {card.index} ' if len(sample.cards) > 1 else ''}"
        f"{format_bytes(card.allocated)} allocated, peak {format_bytes(card.peak)}"
        for card in sample.cards
    ]
    if (host := sample.host) is not None:
        bytes_ = [f"{format_bytes(host.process)} resident, peak {format_bytes(host.peak)}"]
    return f"{title}: {'; '.join([*([', '.join(where)] if where else []), *bytes_]) or 'traced'}"
