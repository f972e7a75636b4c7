"""Write a fit as data for the chart on which its value can be dragged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbmem.core.session.categories import Category
from nbmem.views.charts import growth
from nbmem.views.markup import data_uri, one_line

if TYPE_CHECKING:
    from nbmem.report.estimate_results import Fit, Part

VERSION = 1
"""Raised when an older front end cannot draw it."""
_KEYS = {category.label: category.key for category in Category}


def fit_data(fit: Fit, tables: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    """Return chart, formula and runs; None without a formula or a chart.

    Args:
        fit: The result.
        tables: Tables of it as (caption, text).
    """
    picture = growth.growth(fit)
    if picture is None or fit.total is None:
        return None
    return {
        "version": VERSION,
        "title": one_line(fit.title),
        "variable": one_line(fit.variable),
        "card": fit.card.name,
        "room": fit.card.total - fit.card.margin,
        "safe": fit.safe,
        "best": fit.best,
        "limit": fit.limit,
        "step": fit.step,
        "sentences": [one_line(sentence) for sentence in fit.sentences],
        "chart": {
            "image": data_uri(picture.svg),
            "alt": picture.alt,
            "width": picture.width,
            "height": picture.height,
            "left": growth.LEFT,
            "right": growth.RIGHT,
            "end": growth.right_edge(fit),
        },
        "total": _part(fit.total),
        "parts": [_part(part) for part in fit.parts],
        "runs": [
            {
                "value": probe.value,
                "fits": probe.fits,
                "allocated": probe.allocated,
                "process": probe.need,
                "held": probe.held,
            }
            for probe in fit.probes
            if probe.ran
        ],
        "tables": list(map(list, tables)),
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "key": _KEYS.get(part.name),
        "name": part.name,
        "fixed": part.fixed,
        "each": part.each,
        "square": part.square,
    }
