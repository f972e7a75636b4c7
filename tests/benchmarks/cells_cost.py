"""Measure the cost of one traced cell as a notebook gets older.

One IPython shell on a virtual T4, no page. Printed for each stretch of cells: the median of the CPU
time of a cell and of its calls of Python functions, the memory of the process and the objects that
live. `--profile` also prints what the last cells did more of than the early ones.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import gc
import io
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

import nbmem
from nbmem import virtual

SETUP = """\
import torch
from torch import nn
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).cuda()
optimizer = torch.optim.Adam(model.parameters())
"""
STEP = """\
loss = model(torch.randn(32, 64, device='cuda')).sum()
loss.backward()
optimizer.step()
optimizer.zero_grad()
loss.shape
"""
TRACED = "%%memtrace --no-widget\n"


def resident_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def run(shell: InteractiveShell, code: str) -> float:
    begun = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = shell.run_cell(code, store_history=True)
    result.raise_error()
    return time.process_time() - begun


def profiled(shell: InteractiveShell, code: str, cells: int, into: Path) -> None:
    """Profile some cells into a file."""
    profile = cProfile.Profile()
    for _ in range(cells):
        profile.enable()
        run(shell, code)
        profile.disable()
    profile.dump_stats(into)


def print_growth(files: list[Path], cells: int) -> None:
    """Print the functions whose own time a cell has grown most."""
    early, late = (pstats.Stats(str(file)) for file in files)
    before = {where: row[2] for where, row in early.stats.items()}
    calls = {where: row[1] for where, row in early.stats.items()}
    rows = [
        (row[2] - before.get(where, 0.0), row[2], row[1] - calls.get(where, 0), where)
        for where, row in late.stats.items()
    ]
    print(f"{'more ms':>8} {'ms':>8} {'more calls':>10}  a cell")
    for more, own, called, (file, line, name) in sorted(rows, reverse=True)[:25]:
        print(
            f"{more / cells * 1e3:8.3f} {own / cells * 1e3:8.3f} {called / cells:10.1f}  "
            f"{'/'.join(Path(file).parts[-3:])}:{line} {name}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--stretch", type=int, default=50)
    parser.add_argument("--untraced", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    code = STEP if options.untraced else TRACED + STEP
    shell = InteractiveShell.instance()
    folder = Path(tempfile.mkdtemp())
    profiles = [folder / "early", folder / "late"]
    with virtual.activated("T4"):
        nbmem.load_ipython_extension(shell)
        run(shell, SETUP)
        for _ in range(5):
            run(shell, code)
        done = 5
        first = 0.0
        while done < options.cells:
            late = done + options.stretch >= options.cells
            if options.profile and (late or not profiles[0].exists()):
                profiled(shell, code, options.stretch, profiles[late])
                done += options.stretch
                continue
            took = [run(shell, code) for _ in range(options.stretch)]
            done += options.stretch
            middle = statistics.median(took)
            first = first or middle
            print(
                f"cell {done:>5}: {1e3 * middle:6.1f} ms of CPU ({middle / first:.2f} of the first)"
                f"  {resident_mib():6.1f} MiB  {len(gc.get_objects()):>8,} objects",
                flush=True,
            )
        if options.profile:
            print_growth(profiles, options.stretch)
        nbmem.unload_ipython_extension(shell)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
