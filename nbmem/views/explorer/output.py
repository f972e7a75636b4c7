"""The explorer in a notebook's output: its data, compressed, in a MIME type of nbmem's."""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any

from nbmem.views.explorer.data import VERSION, explorer_data
from nbmem.views.explorer.recorded_times import apart
from nbmem.views.mime_types import MIME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.report.model import Report

__all__ = ["MIME", "explorer_output", "packed", "stored", "unpacked"]


def explorer_output(report: Report, cells: Sequence[CellDelta] = ()) -> dict[str, Any]:
    """What goes into the output under `MIME`. The front end has the pictures and the BokehJS."""
    still, times = apart(explorer_data(report, cells))
    return {"version": VERSION, "data": packed(still), "times": packed(times)}


def stored(report: Report) -> bytes:
    """What goes into a recording's file for the viewer page, which packs its entries itself."""
    return json.dumps(explorer_data(report), separators=(",", ":"), allow_nan=False).encode()


def packed(data: dict[str, Any]) -> str:
    """Deflated JSON in base64: a browser unpacks it with what it has."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> dict[str, Any]:
    """The data again."""
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found
