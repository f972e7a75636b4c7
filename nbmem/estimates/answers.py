"""Answers that show themselves, in a notebook and in print()."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any, TypeVar

from nbmem.core.errors import UsageError
from nbmem.report.estimate_results import Fit, Layers, Plan, Worlds

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

_ENDLESS = 1000
"""Columns of what is no terminal."""

Answer = TypeVar("Answer", bound="FitAnswer | PlanAnswer | LayersAnswer | WorldsAnswer")


class _Shown:
    """Text and HTML by the answer's view."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        """The view's module, imported when something is to be seen."""
        raise NotImplementedError

    def __str__(self) -> str:
        text: str = self._view.render_text(self)
        return text

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        bundle: dict[str, str] = self._view.mimebundle(self)
        return bundle

    def to_json(self) -> dict[str, Any]:
        """The stable form, as docs/json.md says."""
        raise NotImplementedError

    def write(self, *, json: str | Path | None = None, html: str | Path | None = None) -> None:
        """Write files: the stable form, and a page that stands alone; None for neither.

        Raises:
            NotWrittenError: One cannot be written.
        """
        from nbmem.core.files.atomic_write import write_json, write_text

        if json is not None:
            write_json(json, self.to_json())
        if html is not None:
            write_text(html, self.to_html())

    def to_html(self) -> str:
        """A page that stands alone."""
        page: str = self._view.render_page(self)
        return page


class FitAnswer(_Shown, Fit):
    """What `nbmem.fit` returns."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        from nbmem.views import fit

        return fit

    def to_json(self) -> dict[str, Any]:
        """The stable form, as docs/json.md says."""
        from nbmem.views.exports.estimates import fit_json

        return fit_json(self)


class PlanAnswer(_Shown, Plan):
    """What `nbmem.plan` returns."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        from nbmem.views import plan

        return plan

    def to_json(self) -> dict[str, Any]:
        """The stable form, as docs/json.md says."""
        from nbmem.views.exports.estimates import plan_json

        return plan_json(self)


class WorldsAnswer(_Shown, Worlds):
    """What `nbmem.plan` returns for several worlds."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        from nbmem.views import world_sizes

        return world_sizes

    def to_json(self) -> dict[str, Any]:
        """The stable form, as docs/json.md says."""
        from nbmem.views.exports.estimates import worlds_json

        return worlds_json(self)


class LayersAnswer(_Shown, Layers):
    """What `nbmem.layers` returns."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        from nbmem.views import layers

        return layers

    def to_json(self) -> dict[str, Any]:
        """The stable form, as docs/json.md says."""
        from nbmem.views.exports.estimates import layers_json

        return layers_json(self)

    def __str__(self) -> str:
        """Text as wide as the terminal, where there is one."""
        from nbmem.views.layers import render_text

        return render_text(self, shutil.get_terminal_size((_ENDLESS, 24)).columns)

    def sorted(self, column: str) -> LayersAnswer:
        """The layers by one of their figures, largest first; `name` for the model's order.

        Raises:
            UsageError: There is no such figure.
        """
        from nbmem.views.layers import sort

        return shown(LayersAnswer, sort(self, column))

    def to_frame(self) -> pd.DataFrame:
        """A row for each layer.

        Raises:
            UsageError: pandas is not installed.
        """
        from nbmem.views.exports.estimates import layer_json

        try:
            import pandas as pd
        except ImportError:
            raise UsageError(
                "A DataFrame needs pandas, which is not installed: pip install pandas."
            ) from None
        return pd.DataFrame([layer_json(row) for row in self.rows])


def shown(kind: type[Answer], answer: Fit | Plan | Layers | Worlds) -> Answer:
    """Copy an answer into one that shows itself."""
    return kind(**{f.name: getattr(answer, f.name) for f in dataclasses.fields(answer)})
