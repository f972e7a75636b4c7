"""Clock functions that programs cannot replace by patching `time`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Clock(NamedTuple):
    """The functions of the `time` module, under their own names.

    A program's tests may freeze the time, or make it raise. They replace the functions in `time`
    and in every module that holds one by name (freezegun does both). Functions in a tuple are not
    replaced.
    """

    time_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    perf_counter: Callable[[], float] = time.perf_counter
    perf_counter_ns: Callable[[], int] = time.perf_counter_ns
    process_time: Callable[[], float] = time.process_time
    thread_time: Callable[[], float] = getattr(time, "thread_time", time.perf_counter)


CLOCK = Clock()
"""The functions as they were when nbmem was imported."""


def now_ms() -> float:
    """Return milliseconds since the epoch."""
    return CLOCK.time_ns() / 1e6
