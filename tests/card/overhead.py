"""Part `overhead`: the cost of watching a training step."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.card import networks

if TYPE_CHECKING:
    from tests.card.parts import Case

STEPS, ROUNDS = 40, 5
BEGIN, STEADY = 5, 20
"""So many steps of a trace have stacks and names to find; as its last ones are all others."""


def cases() -> Iterator[Case]:
    """Each network."""
    for name in ("convolutional", "transformer"):
        yield name, partial(measured, name)


def measured(name: str) -> dict[str, Any]:
    """Measure milliseconds of a step by kind of watching.

    Rounds are interleaved, and each step is waited for.
    """
    import torch

    step = getattr(networks, name)()

    def timed() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return round(1e3 * (time.perf_counter() - begin), 4)

    for _ in range(STEPS):
        timed()
    first: dict[str, list[float]] = {}
    last: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for way, watch in WAYS.items():
            with watch():
                took = [timed() for _ in range(STEPS)]
            first.setdefault(way, []).append(statistics.median(took[:BEGIN]))
            last.setdefault(way, []).append(statistics.median(took[-STEADY:]))
    medians = {way: round(statistics.median(all_), 4) for way, all_ in last.items()}
    return {"ms": medians, "first": first, "last": last}


@contextlib.contextmanager
def history() -> Iterator[None]:
    """Record torch's memory history with Python stacks."""
    import torch

    memory = torch.cuda.memory
    memory._record_memory_history(context="alloc", stacks="python")
    try:
        yield
    finally:
        memory._record_memory_history(enabled=None)


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Trace with nbmem."""
    import nbmem.api.tracing as nbmem

    with nbmem.trace("t", namespace={}):
        yield


def profiled() -> Any:
    """Profile with torch's profiler and its memory events."""
    from torch.profiler import profile

    return profile(profile_memory=True)


WAYS: dict[str, Callable[[], Any]] = {
    "untraced": contextlib.nullcontext,
    "history": history,
    "nbmem": traced,
    "torch.profiler": profiled,
}
