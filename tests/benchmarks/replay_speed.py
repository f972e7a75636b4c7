"""Measure the speed of the simulated allocator and of follow()."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.recordings.follow import reconstruct
from nbmem.allocator.recordings.recording import read_card
from nbmem.allocator.settings import AllocatorSettings
from nbmem.core.session.events import Action, Events, Layout

RECORDINGS = Path(__file__).parents[1] / "recordings"
MILLION = 1_000_000


def operations(events: Events) -> list[tuple[int, int, int]]:
    """Return a program's requests as (bytes, stream, number)."""
    rows: list[tuple[int, int, int]] = []
    made: dict[int, int] = {}
    columns = (events.action, events.addr, events.size, events.stream)
    for action, addr, size, stream in zip(*(c.tolist() for c in columns), strict=True):
        if action == Action.ALLOC:
            made[addr] = len(rows)
            rows.append((size, stream, 0))
        elif action == Action.FREE_REQUESTED and addr in made:
            rows.append((-1, 0, made.pop(addr)))
    return rows


def run_allocator(rows: list[tuple[int, int, int]], conf: str, *, events: bool) -> float:
    """Return the seconds of one program."""
    seen: list[tuple[int, int]] = []

    def note(action: Action, addr: int, _size: int, _stream: int) -> None:
        seen.append((action, addr))

    allocator = CachingAllocator(
        total_bytes=80 << 30, settings=conf, on_event=note if events else None
    )
    malloc, free = allocator.malloc, allocator.free
    got = [0] * len(rows)
    begin = time.perf_counter()
    for number, (size, stream, which) in enumerate(rows):
        if size >= 0:
            got[number] = malloc(size, stream)
        else:
            free(got[which])
    return time.perf_counter() - begin


def long_history(rows: list[tuple[int, int, int]], least: int) -> Events:
    """Repeat a program until there are at least so many events."""
    seen: list[tuple[int, int, int, int]] = []
    allocator = CachingAllocator(total_bytes=80 << 30, on_event=lambda *event: seen.append(event))
    while len(seen) < least:
        got: dict[int, int] = {}
        for number, (size, stream, which) in enumerate(rows):
            if size >= 0:
                got[number] = allocator.malloc(size, stream)
            else:
                allocator.free(got.pop(which))
        for addr in got.values():
            allocator.free(addr)
    return Events.from_rows((*row, t_ns, -1) for t_ns, row in enumerate(seen))


def main() -> None:
    """Print a table with the best of some rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    recordings = [read_card(path) for path in sorted((RECORDINGS / "traces").glob("*.json.xz"))]
    programs = [
        (operations(r.events), str(r.settings.get("PYTORCH_CUDA_ALLOC_CONF", "")))
        for r in recordings
    ]
    count = sum(len(rows) for rows, _ in programs)
    for events in (False, True):
        best = min(
            sum(run_allocator(rows, conf, events=events) for rows, conf in programs)
            for _ in range(rounds)
        )
        how = "with a callback for each event" if events else "alone"
        print(f"CachingAllocator {how}: {count / best:,.0f} operations/s ({count} in {best:.2f} s)")
    total = sum(len(r.events) for r in recordings)
    best = min(
        sum(_follow_seconds(r.events, r.settings) for r in recordings) for _ in range(rounds)
    )
    print(
        f"follow on {len(recordings)} runs: {total / best:,.0f} events/s ({total} in {best:.2f} s)"
    )
    many = long_history(max((rows for rows, _ in programs), key=len), MILLION)
    best = min(_follow_seconds(many, {}) for _ in range(rounds))
    print(f"follow on one long history: {len(many) / best:,.0f} events/s ({len(many)})")


def _follow_seconds(events: Events, settings: object) -> float:
    parsed = AllocatorSettings.from_torch(settings)  # type: ignore[arg-type]
    begin = time.perf_counter()
    reconstruct(Layout.empty(), events, parsed)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
