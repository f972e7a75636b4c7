"""Pack the explorer's data for a notebook output, in nbmem's MIME type."""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any

from nbmem.views.explorer.data import VERSION, explorer_data
from nbmem.views.explorer.recorded_times import split_times
from nbmem.views.mime_types import MIME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.report.model import Report

__all__ = ["MIME", "explorer_output", "packed", "stored", "unpacked"]


def explorer_output(report: Report, cells: Sequence[CellDelta] = ()) -> dict[str, Any]:
    """Return the output's content under `MIME`.

    The front end has the pictures and BokehJS.
    """
    still, times = split_times(explorer_data(report, cells))
    return {"version": VERSION, "data": packed(still), "times": packed(times)}


def stored(report: Report) -> bytes:
    """Return the explorer's data as JSON for a recording's file.

    The viewer page reads it. The file packs its entries itself.
    """
    return json.dumps(explorer_data(report), separators=(",", ":"), allow_nan=False).encode()


def packed(data: dict[str, Any]) -> str:
    """Encode data as deflated JSON in base64, which browsers can decode."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> dict[str, Any]:
    """Decode the packed explorer data."""
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found
