"""Part `readings`: the cost of one reading, in microseconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.card.parts import Case

TIMES = 200


def cases() -> Iterator[Case]:
    """Yield each reading; a thousand tensors live on the card."""
    import torch

    kept = [torch.zeros(1024, device="cuda") for _ in range(1000)]
    for name, read in readings(torch).items():
        yield name, partial(timed, read, kept)


def timed(read: Callable[[], Any], _kept: Any) -> dict[str, float]:
    """Return median, minimum and 95th percentile of many readings."""
    took = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        read()
        took.append((time.perf_counter() - begin) * 1e6)
    took.sort()
    least, late = took[0], took[int(0.95 * TIMES)]
    figures = {"median": statistics.median(took), "least": least, "95%": late}
    return {name: round(value, 2) for name, value in figures.items()}


def readings(torch: Any) -> dict[str, Callable[[], Any]]:
    """Return the functions to measure, by name."""
    from nbmem.capture.devices.nvml import NvmlProbe

    probe = NvmlProbe()
    return {
        "torch.cuda.memory_allocated": torch.cuda.memory_allocated,
        "torch.cuda.memory_stats": torch.cuda.memory_stats,
        "torch.cuda.mem_get_info": torch.cuda.mem_get_info,
        "nbmem's NVML reading": lambda: probe.read(0),
        "nbmem's NVML reading with others": lambda: probe.read(0, others=True),
        "synchronize": torch.cuda.synchronize,
    }
