"""Answers that show themselves, in a notebook and in print()."""

from __future__ import annotations

import dataclasses
import shutil
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from nbmem.answers import Fit, Layers, Plan
from nbmem.core.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

_ENDLESS = 1000
"""Columns of what is no terminal."""

Answer = TypeVar("Answer", bound="FitAnswer | PlanAnswer | LayersAnswer")


class _Shown:
    """Text, HTML and JSON by the view of the same name."""

    __slots__ = ()
    _view = ""

    def __str__(self) -> str:
        text: str = self._module().render_text(self)
        return text

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        bundle: dict[str, str] = self._module().mimebundle(self)
        return bundle

    def to_html(self) -> str:
        """A page that stands alone."""
        page: str = self._module().render_page(self)
        return page

    def to_json(self) -> dict[str, Any]:
        """The stable form that the view documents."""
        found: dict[str, Any] = getattr(self._module(), f"{self._view}_json")(self)
        return found

    def _module(self) -> Any:
        return import_module(f"nbmem.views.{self._view}")


class FitAnswer(_Shown, Fit):
    """What `nbmem.fit` returns."""

    __slots__ = ()
    _view = "fit"


class PlanAnswer(_Shown, Plan):
    """What `nbmem.plan` returns."""

    __slots__ = ()
    _view = "plan"


class LayersAnswer(_Shown, Layers):
    """What `nbmem.layers` returns."""

    __slots__ = ()
    _view = "layers"

    def __str__(self) -> str:
        """As wide as the terminal, where there is one."""
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
        from nbmem.views.layers import records

        try:
            import pandas as pd
        except ImportError:
            raise UsageError(
                "A DataFrame needs pandas, which is not installed: pip install pandas."
            ) from None
        return pd.DataFrame(records(self))


def shown(kind: type[Answer], answer: Fit | Plan | Layers) -> Answer:
    """The same answer as one that shows itself."""
    return kind(**{f.name: getattr(answer, f.name) for f in dataclasses.fields(answer)})
