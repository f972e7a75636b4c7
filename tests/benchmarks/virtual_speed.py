"""Measure the time of a training step on a virtual card.

What a program reads costs its stand-ins, by their number.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch import nn

from nbmem import virtual

STEPS = 3
COPIES = 50


def measure(layers: int, width: int, rows: int) -> tuple[float, int]:
    """Return CPU seconds of three steps, and the card's peak."""
    with virtual.activated("H200"):
        with torch.device("cuda"):
            blocks = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())]
            model = nn.Sequential(*blocks)
        optimizer = torch.optim.AdamW(model.parameters())
        begin = time.process_time()
        for _ in range(STEPS):
            model(torch.randn(rows, width, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.process_time() - begin, torch.cuda.max_memory_allocated()


def reading(count: int) -> float:
    """Return CPU microseconds of copying unknown floats to the CPU."""
    with virtual.activated("H200"):
        unknown = torch.randn(count, device="cuda")
        unknown.cpu()
        begin = time.process_time()
        for _ in range(COPIES):
            unknown.cpu()
        return (time.process_time() - begin) / COPIES * 1e6


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    measure(4, 64, 64)  # torch's own first-time imports
    for layers, width, rows in (
        (50, 64, 64), (50, 512, 512), (50, 4096, 4096), (50, 8192, 16384),
        (100, 4096, 64), (200, 4096, 64),
    ):  # fmt: skip
        seconds, peak = measure(layers, width, rows)
        print(
            f"{layers:>4} layers of {width:>5}, {rows:>6} rows: {seconds:6.2f} s, {STEPS} steps, "
            f"{peak / 2**20:>10,.0f} MiB on the card"
        )
    for count in (1 << 10, 1 << 14, 1 << 18):
        print(f"a copy of {count:>7,} unknown floats: {reading(count):8,.0f} us")
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"host memory of the process at its highest: {host:,} MiB")


if __name__ == "__main__":
    main()
