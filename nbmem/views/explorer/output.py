"""Pack the explorer's data for a notebook output, in nbmem's MIME type.

Times are separate from the other data. Two runs of a cell differ in their times, and in little
else. In a saved notebook each half is a separate text. A diff of two runs is then as long as their
times, and the other half can be compared.

A new field with a time goes into this file and into the front end's times.ts.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbmem.views.explorer.data import VERSION, explorer_data
from nbmem.views.mime_types import MIME

if TYPE_CHECKING:
    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.report.model import Report

US = 1000
"""Nanoseconds in a microsecond: the written resolution, and that of the explorer."""


def split_times(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the explorer's data into data without times and the times.

    Times are in whole microseconds. `labextension/src/explorer/times.ts` joins the two halves.
    """
    moments, phases, history = data["moments"], data["phases"], data["history"]
    bands, steps, cells = data["bands"], data["steps"], data.get("cells", [])
    times = {
        "about": data["about"],
        "by_event": data["by_event"],
        "duration": data["duration"] // US,
        "t": _steps(moments["t"]),
        "bands": [[band[0] // US, band[1] // US] for band in bands],
        "phases": [[row["t0"] // US, row["t1"] // US] for row in phases],
        "steps": [row[1] // US for row in steps],
        "cells": [[row[1] // US, row[2] // US] for row in cells],
        "history": [row["duration"] // US for row in history],
    }
    still = {key: value for key, value in data.items() if key not in times}
    still |= {
        "moments": {key: value for key, value in moments.items() if key != "t"},
        "bands": [band[2:] for band in bands],
        "phases": [_without(row, "t0", "t1") for row in phases],
        "steps": [[row[0], *row[2:]] for row in steps],
        "cells": [[row[0], *row[3:]] for row in cells],
        "history": [_without(row, "duration") for row in history],
    }
    return still, times


def _without(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def _steps(steps_ns: list[int]) -> list[int]:
    """Convert differences in nanoseconds to microseconds.

    Rounding errors do not add up.
    """
    now, before, found = 0, 0, []
    for step in steps_ns:
        now += step
        found.append(now // US - before)
        before = now // US
    return found


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
