"""Show a live explorer whose selection is traits.

Setting a trait moves the picture, and a selection in the picture sets it. The buttons are HTML: as
ipywidgets they would need a kernel, which the saved output (built from this TypeScript) lacks. Code
needs no zoom or tab; `moment`, `span` and `tensor` are for `link`, `jslink` and `observe`. The
kernel sends finer data about a moment, which are drawn unchanged.

`frame_of` converts the allocations of a moment to a DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import bokeh
import traitlets

from nbmem.core.errors import UsageError
from nbmem.report.analysis.lifetimes import lifetime_of, lifetimes_of
from nbmem.report.analysis.moment_details import moment_details, position_at
from nbmem.views.explorer.data import VERSION, closeup_data
from nbmem.views.explorer.holding_names import parts_of
from nbmem.views.explorer.output import explorer_output, packed
from nbmem.views.html import render_html
from nbmem.views.text import render_text

if TYPE_CHECKING:
    import pandas as pd

    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.report.exploration import Lifetime
    from nbmem.report.ledger.card_ledger import CardLedger
    from nbmem.report.model import Report


def frame_of(lives: Iterable[Lifetime]) -> pd.DataFrame:
    """Return allocations as a DataFrame, largest first, by number.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise UsageError(
            "A DataFrame needs pandas, which is not installed: pip install pandas."
        ) from None

    found = sorted(lives, key=lambda life: -life.requested)
    parts = [parts_of(life) for life in found]
    return pd.DataFrame(
        {
            "bytes": [life.requested for life in found],
            "block": [life.block for life in found],
            "category": [life.category.label for life in found],
            "name": [part.name for part in parts],
            "holder": [part.group for part in parts],
            "shape": [part.shape for part in parts],
            "dtype": [part.dtype for part in parts],
            "born_in": [life.born_in for life in found],
            "line": [life.line for life in found],
        },
        index=pd.Index([life.number for life in found], name="tensor", dtype="int64"),
    )


_STATIC = Path(__file__).parent / "static"
_BOKEHJS = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"


def _bundled(name: str) -> str:
    path = _STATIC / name
    if not path.exists():
        raise UsageError(
            f"The widget's {name} is not there: this nbmem was installed without building its "
            "JupyterLab extension. Run `npm ci && npm run build` in labextension/."
        )
    return path.read_text(encoding="utf-8")


class ExplorerWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """The explorer of one report, which knows every moment of the recording.

    Args:
        report: The report to show.
        card_ledger: The ledger from which the report was read.
        cells: The notebook's history, oldest first.

    Attributes:
        moment: Index of the next event at the chosen moment, from 0 to the number of events.
        span: (first, last) event of the selected interval, None for all. Selecting one moves to its
            highest moment.
        tensor: The selected allocation, by its number (the index of `to_frame()`); None for none.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    moment = traitlets.Int().tag(sync=True)
    span = traitlets.Tuple(
        traitlets.Int(), traitlets.Int(), allow_none=True, default_value=None
    ).tag(sync=True)
    tensor = traitlets.Int(allow_none=True, default_value=None).tag(sync=True)
    report = traitlets.Dict().tag(sync=True)
    closeup = traitlets.Dict().tag(sync=True)
    bokeh = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        report: Report,
        card_ledger: CardLedger,
        cells: Sequence[CellDelta] = (),
        **options: Any,
    ) -> None:
        self._card_ledger, self._shown = card_ledger, report
        super().__init__(
            _esm=_bundled("explorer.js"),
            _css=_bundled("explorer.css"),
            moment=report.peak.at.event,
            report=explorer_output(report, cells),
            bokeh=bokeh.__version__,
            **options,
        )
        self.on_msg(self._answer)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the view, and a picture for pages that run no widgets."""
        bundle = super()._repr_mimebundle_(**options)
        if bundle is None:
            return None
        data, metadata = bundle
        still = {"text/html": render_html(self._shown), "text/plain": render_text(self._shown)}
        return data | still, metadata

    @property
    def life(self) -> Lifetime | None:
        """The chosen allocation; None if none is chosen."""
        return None if self.tensor is None else lifetime_of(self._card_ledger, self.tensor)

    def to_frame(self) -> pd.DataFrame:
        """Return the live allocations at the chosen moment, largest first.

        This needs pandas.
        """
        return frame_of(
            lifetimes_of(self._card_ledger, self._card_ledger.live(self.moment).tolist())
        )

    @traitlets.validate("moment")  # type: ignore[untyped-decorator]
    def _recorded_moment(self, proposal: Any) -> int:
        return self._inside(proposal["value"])

    @traitlets.validate("span")  # type: ignore[untyped-decorator]
    def _recorded_span(self, proposal: Any) -> tuple[int, int] | None:
        span = proposal["value"]
        return None if span is None else (self._inside(min(span)), self._inside(max(span)))

    @traitlets.validate("tensor")  # type: ignore[untyped-decorator]
    def _recorded_tensor(self, proposal: Any) -> int | None:
        value: int | None = proposal["value"]
        count = len(self._card_ledger.allocations)
        if value is not None and not 0 <= value < count:
            raise traitlets.TraitError(f"There are tensors 0 to {count - 1}, and no {value}.")
        return value

    @traitlets.observe("moment", "span", "tensor")  # type: ignore[untyped-decorator]
    def _send_details(self, change: Any) -> None:
        """Send the page the details that its reduced data lack.

        They are those of the chosen moments.
        """
        if change.name == "span" and self.span is not None:
            peak = self._card_ledger.peak(*self.span)
            if peak != self.moment:
                self.moment = peak  # which calls this method again
                return
        tensors = [] if self.tensor is None else [self.tensor]
        found = moment_details(self._card_ledger, self.moment, *(self.span or ()), tensors=tensors)
        self.closeup = {"version": VERSION, "data": packed(closeup_data(found))}

    def _inside(self, event: int) -> int:
        return min(max(event, 0), self._card_ledger.events)

    def _answer(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        """Answer a message of the page.

        The page needs BokehJS in the kernel's version, since it may have no network. It also sends
        the times that a user points at, and needs their events.
        """
        if message.get("kind") == "bokehjs":
            self.send({"kind": "bokehjs"}, [_BOKEHJS.read_bytes()])
        elif message.get("kind") == "times":
            events = [position_at(self._card_ledger, int(t_ns)) for t_ns in message["times"]]
            if len(events) == 1:
                self.set_trait("span", None)
                self.moment = events[0]
            else:
                self.span = (events[0], events[-1])
