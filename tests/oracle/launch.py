"""The engine torch as the oracle: where its answers lie, and values that it follows."""

from __future__ import annotations

import atexit
import ctypes
import os
from pathlib import Path

from nbmem.engine import availability, cache, launch, process

OUT = Path(__file__).parents[2] / "out" / "oracle"


def release_folder() -> Path:
    """Return the folder of the running release's answers."""
    return OUT / cache.release(availability.require())


def environment(card: str, *, count: int = 1, values: bool = False) -> dict[str, str]:
    """Return the environment for `count` cards; compile missing libraries.

    To nbmem these are real cards.

    Args:
        card: Its name.
        count: How many.
        values: Whether the process computes on the CPU what kernels would write (`follow_values`).
    """
    OUT.mkdir(parents=True, exist_ok=True)
    found = launch.environment(f"{count}x{card}", values=values)
    del found[process.ENGINE]
    atexit.register(Path(found["STANDIN_STATE"]).unlink, missing_ok=True)
    return found


def follow_values() -> None:
    """In a process that was started for it: kernels write what the CPU computes (values.cpp)."""
    if path := os.environ.get("STANDIN_VALUES"):
        import torch  # noqa: F401 - the library finds it in the process

        ctypes.CDLL(path).standin_follow()
