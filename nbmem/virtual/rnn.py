"""cuDNN's recurrent layers: their weight buffer, their reserve space and their workspace."""

from __future__ import annotations

from typing import Any

SPECIAL: dict[Any, Any] = {}
