"""Replace nbmem's clock with another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.clock import CLOCK

if TYPE_CHECKING:
    import pytest


def put_clock(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """Replace functions of nbmem's clock, by their names in `time`."""
    clock = CLOCK._replace(**functions)
    for name, module in tuple(sys.modules.items()):
        if name.partition(".")[0] == "nbmem" and vars(module).get("CLOCK") is CLOCK:
            monkeypatch.setattr(module, "CLOCK", clock)
