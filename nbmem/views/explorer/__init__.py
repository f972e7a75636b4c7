"""Hold the data and pictures of the explorer in notebook and widget."""

from __future__ import annotations

from nbmem.views.explorer.data import explorer_data
from nbmem.views.explorer.output import MIME, explorer_output

__all__ = ["MIME", "explorer_data", "explorer_output"]
