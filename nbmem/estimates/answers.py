"""Answers that display themselves in a notebook and in print()."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from nbmem.core.errors import UsageError
from nbmem.engine import RULES
from nbmem.report.card_choice import SuitableCards
from nbmem.report.estimate_results import Fit, Layers, Plan, Worlds
from nbmem.report.language_results import ContextFit, ModelEstimate

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

_ENDLESS = 1000
"""Columns of what is no terminal."""

Answer = TypeVar("Answer", bound="AnyAnswer")


class _DisplayedAnswer:
    """Text, HTML and JSON of an answer, by the answer's view."""

    __slots__ = ()
    _heading: ClassVar[str] = "{0.title}"
    """Title of its page."""

    @property
    def _view(self) -> Any:
        """The view's module, imported when the answer is first displayed."""
        raise NotImplementedError

    def __str__(self) -> str:
        text: str = self._view.render_text(self)
        return text

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, Any]:
        return {"text/plain": self._plain(), "text/html": self._view.render_html(self)}

    def _plain(self) -> str:
        """Render the text of a notebook's output."""
        return str(self)

    def _page_body(self) -> str:
        """Render the HTML of a page of its own."""
        body: str = self._view.render_html(self)
        return body

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form that docs/json.md describes."""
        raise NotImplementedError

    def write(self, *, json: str | Path | None = None, html: str | Path | None = None) -> None:
        """Write JSON and a standalone HTML page; None for neither.

        Raises:
            NotWrittenError: One cannot be written.
        """
        from nbmem.core.files.atomic_write import write_json, write_text

        if json is not None:
            write_json(json, self.to_json())
        if html is not None:
            write_text(html, self.to_html())

    def to_html(self) -> str:
        """Render a standalone HTML page."""
        from nbmem.views.html import page

        return page(self._heading.format(self), self._page_body())


class FitAnswer(_DisplayedAnswer, Fit):
    """An answer of `nbmem.fit`."""

    __slots__ = ()
    _heading = "fit {0.variable} of {0.title}"

    @property
    def _view(self) -> Any:
        from nbmem.views import fit

        return fit

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        from nbmem.views.fit import chart_data
        from nbmem.views.mime_types import FIT_MIME

        bundle, data = super()._repr_mimebundle_(**options), chart_data(self)
        return bundle if data is None else bundle | {FIT_MIME: data}

    def _page_body(self) -> str:
        from nbmem.views.fit import render_interactive

        return render_interactive(self)

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form that docs/json.md describes."""
        from nbmem.views.exports.estimates import fit_json

        return fit_json(self)


class PlanAnswer(_DisplayedAnswer, Plan):
    """An answer of `nbmem.plan`."""

    __slots__ = ()
    _heading = "plan of {0.title}"

    @property
    def _view(self) -> Any:
        from nbmem.views import plan

        return plan

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form that docs/json.md describes."""
        from nbmem.views.exports.estimates import plan_json

        return plan_json(self)


class WorldsAnswer(_DisplayedAnswer, Worlds):
    """An answer of `nbmem.plan` for several world sizes."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        from nbmem.views import world_sizes

        return world_sizes

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form that docs/json.md describes."""
        from nbmem.views.exports.estimates import worlds_json

        return worlds_json(self)


class LayersAnswer(_DisplayedAnswer, Layers):
    """An answer of `nbmem.layers`."""

    __slots__ = ()
    _heading = "layers of {0.title}"

    @property
    def _view(self) -> Any:
        from nbmem.views import layers

        return layers

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form that docs/json.md describes."""
        from nbmem.views.exports.estimates import layers_json

        return layers_json(self)

    def _plain(self) -> str:
        from nbmem.views.layers import render_text
        from nbmem.views.mime_bundle import WIDTH

        return render_text(self, WIDTH)

    def __str__(self) -> str:
        """Render text as wide as the terminal, if there is one."""
        from nbmem.views.layers import render_text

        return render_text(self, shutil.get_terminal_size((_ENDLESS, 24)).columns)

    def sorted(self, column: str) -> LayersAnswer:
        """Sort the layers by a column, largest first.

        `name` sorts by the model's own order.

        Raises:
            UsageError: There is no such figure.
        """
        from nbmem.views.layers import sort

        return to_displayed(LayersAnswer, sort(self, column))

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with a row for each layer.

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


class ModelAnswer(_DisplayedAnswer, ModelEstimate):
    """An answer of `nbmem.estimate_model`."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        from nbmem.views import model_estimate

        return model_estimate

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form that docs/json.md describes."""
        from nbmem.views.exports.estimates import model_json

        return model_json(self)


class ContextAnswer(_DisplayedAnswer, ContextFit):
    """An answer of `nbmem.fit_context`."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        from nbmem.views import context_fit

        return context_fit

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form that docs/json.md describes."""
        from nbmem.views.exports.estimates import context_json

        return context_json(self)


class CardsAnswer(_DisplayedAnswer, SuitableCards):
    """An answer of `nbmem.plan` for all cards."""

    __slots__ = ()
    _heading = "cards for {0.title}"

    @property
    def _view(self) -> Any:
        from nbmem.views import card_choice

        return card_choice

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form that docs/json.md describes."""
        from nbmem.views.exports.estimates import cards_json

        return cards_json(self)


AnyAnswer = (
    FitAnswer | PlanAnswer | LayersAnswer | WorldsAnswer | ModelAnswer | ContextAnswer | CardsAnswer
)


def to_displayed(
    kind: type[Answer],
    answer: Fit | Plan | Layers | Worlds | ModelEstimate | ContextFit | SuitableCards,
) -> Answer:
    """Copy an answer into a class that displays itself."""
    return kind(**{f.name: getattr(answer, f.name) for f in dataclasses.fields(answer)})


BY_TORCH = "The engine torch made these figures: torch's own CUDA code, without a card."


def named(answer: Any, engine: str) -> Any:
    """Return an answer that names its engine, if it is not the usual one."""
    if engine == RULES:
        return answer
    sentences = (*answer.sentences, BY_TORCH)
    if isinstance(answer, Layers):
        return dataclasses.replace(answer, engine=engine, sentences=sentences)
    card = dataclasses.replace(answer.card, engine=engine)
    return dataclasses.replace(answer, card=card, sentences=sentences)
