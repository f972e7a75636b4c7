"""A live explorer: what a person chooses are traits, and choosing them moves the picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import bokeh
import traitlets

from nbmem.core.errors import UsageError
from nbmem.views.explorer.output import explorer_output
from nbmem.views.widget.frame import largest_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from nbmem.core.history import CellDelta
    from nbmem.details import Life
    from nbmem.report import Report

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
    """The explorer of one report.

    Args:
        report: What it shows.
        cells: The notebook's history, oldest first.

    Attributes:
        moment: Index of the next event at the chosen moment; the picture shows the nearest of its
            own moments and writes that one back.
        span: (first, last) event of the chosen stretch; None for all.
        tensor: Index of the chosen allocation in the report's `details.lives`; None for none.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    moment = traitlets.Int().tag(sync=True)
    span = traitlets.Tuple(
        traitlets.Int(), traitlets.Int(), allow_none=True, default_value=None
    ).tag(sync=True)
    tensor = traitlets.Int(allow_none=True, default_value=None).tag(sync=True)
    report = traitlets.Dict().tag(sync=True)
    bokeh = traitlets.Unicode().tag(sync=True)

    def __init__(self, report: Report, cells: Sequence[CellDelta] = (), **options: Any) -> None:
        self._source = report
        super().__init__(
            _esm=_bundled("explorer.js"),
            _css=_bundled("explorer.css"),
            moment=report.peak.at.event,
            report=explorer_output(report, cells),
            bokeh=bokeh.__version__,
            **options,
        )
        self.on_msg(self._answer)

    @property
    def life(self) -> Life | None:
        """The chosen allocation; None if none is chosen."""
        details = self._source.details
        return None if details is None or self.tensor is None else details.lives[self.tensor]

    def to_frame(self) -> pd.DataFrame:
        """The allocations that live at the chosen moment, the largest first (needs pandas)."""
        return largest_at(self._source, self.moment)

    @traitlets.validate("moment")  # type: ignore[untyped-decorator]
    def _known_moment(self, proposal: Any) -> int:
        events = self._source.timeline.event
        return int(events[abs(events - proposal["value"]).argmin()])

    @traitlets.validate("tensor")  # type: ignore[untyped-decorator]
    def _known_tensor(self, proposal: Any) -> int | None:
        value: int | None = proposal["value"]
        details = self._source.details
        count = 0 if details is None else len(details.lives)
        if value is not None and not 0 <= value < count:
            raise traitlets.TraitError(f"There are tensors 0 to {count - 1}, and no {value}.")
        return value

    def _answer(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        """Hand over BokehJS: the page may have no network, and needs the kernel's own version."""
        if message.get("kind") == "bokehjs":
            self.send({"kind": "bokehjs"}, [_BOKEHJS.read_bytes()])
