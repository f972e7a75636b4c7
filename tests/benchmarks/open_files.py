"""Measure time and memory of opening a file of a million events."""

from __future__ import annotations

import argparse
import gc
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import nbmem

DEPTH = 24
"""Frames of a stack: a training loop's are 20 to 40 deep."""
OPEN = r"""
import re, sys, time
begin = time.perf_counter()
import nbmem
session = nbmem.open(sys.argv[1]).session
seconds = time.perf_counter() - begin
status = open("/proc/self/status").read()  # ru_maxrss would be that of the parent, too
peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10
events = sum(len(device.events) for device in session.devices)
print(f"{seconds:.2f} {time.process_time():.2f} {peak} {events}")
"""


def snapshot_of(events: int, stacks: int) -> dict[str, object]:
    """Make torch's dump of blocks that come and go."""
    draw = random.Random(0)
    line = [
        {"name": f"function_{n}", "filename": f"project/part_{n % 40}.py", "line": n}
        for n in range(2_000)
    ]
    known = [[line[draw.randrange(2_000)] for _ in range(DEPTH)] for _ in range(stacks)]
    segment, block, free = 1 << 34, 1 << 21, 1 << 47
    addresses = [free + n * block for n in range(segment // block)]
    trace: list[dict[str, object]] = []

    def note(action: str, addr: int, size: int) -> None:
        trace.append(
            {
                "action": action,
                "addr": addr,
                "size": size,
                "stream": 0,
                "time_us": 1_760_000_000_000_000 + 3 * len(trace),
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": known[draw.randrange(stacks)],
            }
        )

    note("segment_alloc", free, segment)
    held: list[int] = []
    while len(trace) < events - 3:
        if addresses and (len(held) < 2_000 or draw.random() < 0.5):
            held.append(addresses.pop())
            note("alloc", held[-1], block)
        else:
            addr = held.pop(draw.randrange(len(held)))
            note("free_requested", addr, block)
            note("free_completed", addr, block)
            addresses.append(addr)
    used = set(held)
    blocks = [
        {
            "address": addr,
            "size": block,
            "requested_size": block,
            "state": "active_allocated" if addr in used else "inactive",
            "frames": [],
        }
        for addr in range(free, free + segment, block)
    ]
    card = {
        "device": 0,
        "address": free,
        "total_size": segment,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    return {"segments": [card], "device_traces": [trace], "allocator_settings": {}}


def opened(path: Path) -> tuple[float, float, int, int]:
    """Open a file; return seconds, CPU time, peak MiB and events."""
    command = [sys.executable, "-c", OPEN, str(path)]
    seconds, busy, peak, events = subprocess.check_output(command, text=True).split()
    return float(seconds), float(busy), int(peak), int(events)


def main() -> None:
    """Make a snapshot and the session of it, and open each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--stacks", type=int, default=20_000, help="different Python stacks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder to make the files in, and to keep them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        snapshot, session = folder / "million.pickle", folder / "million.nbmem"
        if not snapshot.exists():
            gc.disable()  # making it is not what is timed
            with snapshot.open("wb") as file:
                pickle.dump(snapshot_of(options.events, options.stacks), file, protocol=4)
            gc.enable()
        if not session.exists():
            nbmem.open(snapshot).save(session)
        for path in (snapshot, session):
            for _ in range(options.rounds):
                seconds, busy, peak, events = opened(path)
                print(
                    f"{path.name:<16}{path.stat().st_size >> 20:>5} MiB {events:>10,} events "
                    f"{seconds:6.2f} s ({busy:.2f} s of CPU) {peak:>6,} MiB"
                )


if __name__ == "__main__":
    main()
