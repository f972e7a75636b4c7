"""Compare compiled steps: `python3 tools/oracle.py --compiled [PART ...]`.

Each workload has a process and a folder of Inductor's of its own, for what was compiled before is
in its caches. Asked are the peaks of each step, the first one with its compiling, and the sizes of
the last one in order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tests.oracle.launch import environment, follow_values, release_folder
from tests.oracle.models import sort_frees
from tests.oracle.record import AllocatorEvents, error_text

STEPS = 5
HUNG_S = 900
READ_VALUES = ("transformers generate",)
"""Those that look at values: whether a mask masks anything. Triton's kernels write none."""


def workloads() -> dict[str, Any]:
    """Return the workloads by name, those that need a package last."""
    from tests.oracle.packaged_images import IMAGES
    from tests.oracle.packaged_language import WORDS
    from tests.oracle.programs import WORKLOADS

    return WORKLOADS | IMAGES | WORDS


def steps_of(name: str) -> dict[str, Any]:
    """Return the bytes of each step of a workload."""
    import torch

    follow_values()
    torch.manual_seed(0)
    x = torch.zeros(8, 8, device="cuda", requires_grad=True)
    (x @ x).sum().backward()  # the libraries' handles and workspaces first
    del x
    step = workloads()[name]()
    peaks, heard = [], None
    for number in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        if number == STEPS - 1:
            heard = AllocatorEvents(torch)
        step()
        peaks.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
    assert heard is not None
    return {"sizes": heard.sizes(), "peaks": peaks, "pools": private_pools(torch)}


def private_pools(torch: Any) -> list[int]:
    """Bytes of each graph's private pool, in order of size."""
    pools: Counter[tuple[int, int]] = Counter()
    for segment in torch.cuda.memory_snapshot():
        pools[segment["segment_pool_id"]] += segment["total_size"]
    del pools[0, 0]
    return sorted(pools.values())


def compared(oracle: dict[str, Any], here: dict[str, Any]) -> str:
    """Format a row: errors of the peaks, and whether last steps agree."""
    if "error" in oracle or "error" in here:
        return f"{oracle.get('error', 'ran')} | {here.get('error', 'ran')} | "
    sides = oracle, here
    true, mine = ([max(peaks) for peaks in zip(*side["peaks"], strict=True)] for side in sides)
    errors = [f"{100 * (m / t - 1):+.2f}%" for m, t in zip(mine, true, strict=True)]
    same = "no"
    for word, form in (("but work areas", without_work_areas), ("yes", list)):
        if sort_frees(form(oracle["sizes"])) == sort_frees(form(here["sizes"])):
            same = word
    return " | ".join([*errors, same])


def without_work_areas(sizes: list[int]) -> list[int]:
    """Drop blocks that are freed before the next request."""
    kept: list[int] = []
    for size in sizes:
        if kept and size < 0 and kept[-1] == -size:
            kept.pop()
        else:
            kept.append(size)
    return kept


def run(names: list[str], card: str, virtual_python: str) -> None:
    """Run both sides of each workload and print the table."""
    print("| workload | allocated | reserved | the last step is equal | notes |")
    print("| --- | --: | --: | --- | --- |")
    for name in workloads():
        if names and not any(part in name for part in names):
            continue
        env = environment(card, values=name.startswith(READ_VALUES))
        oracle = answer(name, [sys.executable], env)
        here = answer(name, [virtual_python], dict(os.environ), "--virtual", card)
        notes = "; ".join(note[:80] for note in here.get("notes", ()))
        print(f"| {name} | {compared(oracle, here)} | {notes} |", flush=True)


def answer(name: str, python: list[str], env: dict[str, str], *more: str) -> dict[str, Any]:
    """Return one side's answer; the oracle's is cached."""
    folder = release_folder() / "results"
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"compiled {name}{' virtual' * bool(more)}.json"
    if not more and out.exists():
        return dict(json.loads(out.read_text()))
    out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as caches:
        env = env | {"TORCHINDUCTOR_CACHE_DIR": caches, "TRITON_CACHE_DIR": f"{caches}/triton"}
        command = [*python, "-m", "tests.oracle.compiled", str(out), name, *more]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=env, check=False, timeout=HUNG_S)
    return dict(json.loads(out.read_text())) if out.exists() else {"error": "did not end"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--virtual", metavar="CARD", help="on this virtual card; else as it is")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    gpu = None
    if options.virtual:
        from nbmem import virtual

        gpu = virtual.activate(options.virtual)
    found: dict[str, Any]
    try:
        found = steps_of(options.name)
    except Exception as err:  # noqa: BLE001 - whatever it is, it is the finding
        found = {"error": error_text(err)}
    found["notes"] = list(gpu.notes) if gpu is not None else []
    options.out.write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # The stand-in's threads may abort a process that takes itself apart.


if __name__ == "__main__":
    main()
