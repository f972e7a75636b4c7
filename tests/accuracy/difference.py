"""Find the first allocation at which a virtual run leaves its recording.

`python -m tests.accuracy.difference NAME [--phase forward:0]` shows what the card took and the
virtual one did not (`-`), and the other way round (`+`, with the operator that took it).
"""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import Any

from nbmem import virtual
from nbmem.virtual.dispatch.card_mode import CardMode
from nbmem.virtual.hardware.gpu import VirtualGPU
from tests.accuracy.__main__ import recorded
from tests.accuracy.one import Run

Taken = tuple[int, str, int | None]
"""Bytes, who took them, and how many later allocations the block outlived (None: the phase)."""


def real_phases(raw: dict[str, Any]) -> dict[str, list[Taken]]:
    """Return the allocations of the recording by phase."""
    actions, events = raw["actions"], raw["events"]
    alloc, free = actions.index("alloc"), actions.index("free_completed")
    phases: dict[str, list[Taken]] = {}
    at = 0
    for bound in raw["bounds"]:
        rows: list[list[Any]] = []
        live: dict[int, int] = {}
        while at < len(events) and events[at][4] <= bound["t"]:
            action, addr, size = events[at][:3]
            if action == alloc:
                live[addr] = len(rows)
                rows.append([size, "", None])
            elif action == free and addr in live:
                row = live.pop(addr)
                rows[row][2] = len(rows) - row - 1
            at += 1
        phases[f"{bound['end_of']}:{bound['it']}"] = [tuple(row) for row in rows]
    return phases


class Watched(Run):
    """A run that records which operator allocates what."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.phases: dict[str, list[Taken]] = {}
        self.rows: list[list[Any]] = []
        self.live: dict[int, int] = {}
        self.operator = ""

    def bound(self, phase: str, iteration: int) -> None:
        super().bound(phase, iteration)
        self.phases[f"{phase}:{iteration}"] = [tuple(row) for row in self.rows]
        self.rows.clear()
        self.live.clear()

    def watch(self) -> None:
        true_run, true_take, true_bury = CardMode._run, VirtualGPU.take, VirtualGPU.give

        def run(mode: CardMode, func: Any, args: Any, kwargs: Any) -> Any:
            before, self.operator = self.operator, str(func)
            try:
                return true_run(mode, func, args, kwargs)
            finally:
                self.operator = before

        def take(gpu: VirtualGPU, size: int, stream: int | None = None) -> int:
            addr = true_take(gpu, size, stream)
            if addr:
                self.live[addr] = len(self.rows)
                self.rows.append([size, self.operator, None])
            return addr

        def give(gpu: VirtualGPU, addr: int) -> None:
            if addr in self.live:
                row = self.live.pop(addr)
                self.rows[row][2] = len(self.rows) - row - 1
            true_bury(gpu, addr)

        CardMode._run, VirtualGPU.take, VirtualGPU.give = run, take, give


def show(real: list[Taken], mine: list[Taken], limit: int) -> list[str]:
    matcher = difflib.SequenceMatcher(
        None, [row[0] for row in real], [row[0] for row in mine], autojunk=False
    )
    lines: list[str] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            lines.extend(
                f"      [{n + c - a}] {real[n][0]:>12,} {mine[n + c - a][1]}: lives {real[n][2]} "
                f"allocations on the card, {mine[n + c - a][2]} here"
                for n in range(a, b)
                if (real[n][2] is None) != (mine[n + c - a][2] is None)
            )
            continue
        lines.append(f"   @{c} after {mine[c - 1][1] if c else 'the start'}:")
        lines.extend(f"    - {real[n][0]:>12,} lives {real[n][2]}" for n in range(a, b))
        lines.extend(
            f"    + {mine[n][0]:>12,} {mine[n][1]} lives {mine[n][2]}" for n in range(c, d)
        )
    return lines[:limit]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--phase")
    parser.add_argument("--limit", type=int, default=60)
    options = parser.parse_args()
    raw = recorded(options.name)
    run = Watched(options.name)
    conf = "expandable_segments:True" if run.opts.get("expandable") else ""
    virtual.activate("H100 80GB", release="2.11.0", conf=conf)
    run.watch()
    run.go()
    out = sys.stdout.write
    for mine, real in zip(run.bounds, raw["bounds"], strict=False):
        out(
            f"{mine['end_of']}:{mine['it']:<3} "
            + "  ".join(
                f"{key} {mine[key] / 2**20:9.1f} ({(mine[key] - real[key]) / 2**20:+8.2f})"
                for key in ("allocated", "peak_allocated", "reserved", "process")
            )
            + "\n"
        )
    for phase, rows in real_phases(raw).items():
        if phase in run.phases and options.phase in (None, phase):
            lines = show(rows, run.phases[phase], options.limit)
            if lines:
                out(f"{phase}\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
