"""What watching costs a training step: nothing, the history alone, nbmem, torch's profiler."""

from __future__ import annotations

import contextlib
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.card import networks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.card.parts import Case

STEPS, ROUNDS = 10, 7


def cases() -> Iterator[Case]:
    """Each network."""
    for name in ("convolutional", "transformer"):
        yield name, partial(measured, name)


def measured(name: str) -> dict[str, Any]:
    """Milliseconds of a step by way of watching, every round; rounds are interleaved."""
    import torch

    step = getattr(networks, name)()
    for _ in range(STEPS):
        step()
    rounds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for way, watch in WAYS.items():
            with watch():
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(STEPS):
                    step()
                torch.cuda.synchronize()
                took = time.perf_counter() - begin
            rounds.setdefault(way, []).append(round(took / STEPS * 1e3, 4))
    medians = {way: round(statistics.median(all_), 4) for way, all_ in rounds.items()}
    return {"ms": medians, "rounds": rounds}


@contextlib.contextmanager
def history() -> Iterator[None]:
    """torch's memory history with Python stacks."""
    import torch

    memory = torch.cuda.memory
    memory._record_memory_history(context="alloc", stacks="python")
    try:
        yield
    finally:
        memory._record_memory_history(enabled=None)


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """A trace of nbmem's."""
    import nbmem.api as nbmem

    with nbmem.trace("t", namespace={}):
        yield


def profiled() -> Any:
    """torch's profiler with its memory events."""
    from torch.profiler import profile

    return profile(profile_memory=True)


WAYS: dict[str, Callable[[], Any]] = {
    "untraced": contextlib.nullcontext,
    "history": history,
    "nbmem": traced,
    "torch.profiler": profiled,
}
