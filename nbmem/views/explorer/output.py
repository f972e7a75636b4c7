"""The explorer in a notebook's output: data and figures, compressed, in a MIME type of nbmem's."""

from __future__ import annotations

import base64
import json
import zlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from nbmem.views.explorer.data import VERSION, explorer_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbmem.core.history import CellDelta
    from nbmem.report import Report

MIME = "application/vnd.nbmem.report+json"


def explorer_output(report: Report, cells: Sequence[CellDelta] = ()) -> dict[str, Any]:
    """What goes into the output under `MIME`; the front end has the BokehJS that draws it."""
    return {"version": VERSION, "data": packed(with_figures(explorer_data(report, cells)))}


def with_figures(data: dict[str, Any]) -> dict[str, Any]:
    """The data with the pictures that show it."""
    return {**data, "figures": written_figures()}


@cache
def written_figures() -> tuple[tuple[str, str], ...]:
    """Name and document of each picture, as tools/figures.py has written them.

    They are the same for every report, and Bokeh, which makes them, takes most of a second to
    import.
    """
    text = files("nbmem.views.explorer").joinpath("figures.json").read_text(encoding="utf-8")
    return tuple((name, document) for name, document in json.loads(text))


def packed(data: dict[str, Any]) -> str:
    """Deflated JSON in base64: a browser unpacks it with what it has."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> dict[str, Any]:
    """The data again."""
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found
