"""Measure what an untraced cell costs, and the count of its peak alone.

One IPython shell on a virtual T4, no page. Cells with and without a line in the history take turns.
Times are of the CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from IPython.core.interactiveshell import InteractiveShell

import nbmem
from nbmem import virtual
from nbmem.capture.torch_cuda import ORIGINAL
from nbmem.capture.torch_memory.peak_counters import begin_measuring
from nbmem.frontends.notebook.extension import _LOADED

TAKE = "x = torch.empty(1 << 20, device='cuda'); del x"


def spent(run: Callable[[], object]) -> float:
    begun = time.process_time()
    run()
    return 1e3 * (time.process_time() - begun)


def measured(run: Callable[[], object] = lambda: None) -> None:
    """Run something under a meter."""
    meter = begin_measuring()
    run()
    meter.end()


def take() -> None:
    torch.empty(1 << 20, device="cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = range(parser.parse_args().rounds)
    shell = InteractiveShell.instance()
    with virtual.activated("T4"):
        shell.run_cell("import torch")
        nbmem.load_ipython_extension(shell)
        hooks = _LOADED[shell].hooks

        def cell(*, counted: bool) -> float:
            hooks.deltas = counted
            return spent(lambda: shell.run_cell(TAKE, store_history=True))

        more = [cell(counted=True) - cell(counted=False) for _ in rounds]
        print(f"a cell's line in the history     {statistics.median(more):+.3f} ms")
        torch.cuda.reset_peak_memory_stats()
        print(f"its peak, without a reset        {average(measured, rounds):+.3f} ms")
        reset = average(lambda: measured(take), rounds) - average(take, rounds)
        print(f"its peak, with a reset           {reset:+.3f} ms")
        read = torch._C._cuda_memoryStats
        own = getattr(read, ORIGINAL)
        added = average(lambda: read(0), rounds) - average(lambda: own(0), rounds)
        print(f"a reading of the user's          {added:+.3f} ms")


def average(run: Callable[[], object], rounds: range) -> float:
    return spent(lambda: [run() for _ in rounds]) / len(rounds)


if __name__ == "__main__":
    main()
