"""Distribute hostile files to workers and count the outcomes."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import wait

from tests.fuzz.mutations import KINDS
from tests.fuzz.worker import Outcome, serve

HANGS = 60
"""Seconds after which a worker that says nothing is ended."""


class _Worker:
    """A worker process and its current file."""

    def __init__(self, only: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, only), daemon=True)
        self.process.start()
        theirs.close()
        self.number: int | None = None

    def give(self, number: int | None) -> None:
        self.number = number
        self.pipe.send(number)

    def answer(self) -> Outcome:
        try:
            return self.pipe.recv()
        except EOFError:
            return self.end("the process died")

    def end(self, why: str) -> Outcome:
        self.process.kill()
        return Outcome(self.number or 0, "?", "killed", why, 0.0, 0)


def run(numbers: Iterable[int], *, only: str | None = None, workers: int = 0) -> list[Outcome]:
    """Try files on all cores.

    Args:
        numbers: Which.
        only: Files of one kind alone; None for all.
        workers: Processes; 0 for one on each core.
    """
    waiting, outcomes = iter(numbers), []
    busy = [_Worker(only) for _ in range(workers or os.cpu_count() or 1)]
    for worker in busy:
        worker.give(next(waiting, None))
    busy = [worker for worker in busy if worker.number is not None]
    while busy:
        ready = set(wait([worker.pipe for worker in busy], timeout=HANGS))
        for at, worker in enumerate(list(busy)):
            if ready and worker.pipe not in ready:
                continue
            outcome = worker.answer() if ready else worker.end(f"nothing for {HANGS} s")
            outcomes.append(outcome)
            if outcome.how == "killed":
                worker = busy[at] = _Worker(only)  # noqa: PLW2901 - a fresh one in its place
            worker.give(next(waiting, None))
        busy = [worker for worker in busy if worker.number is not None]
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    """Format counts by kind, then the failures without repeats."""
    counts = Counter((one.kind, one.how in {"opened", "refused"} and one.how) for one in outcomes)
    lines = [f"{'kind':<10}{'tried':>9}{'opened':>9}{'refused':>9}{'failed':>9}"]
    for kind in [*sorted(KINDS), "?", "all"]:
        row = [
            sum(n for (k, how), n in counts.items() if kind in {k, "all"} and how in wanted)
            for wanted in ({"opened", "refused", False}, {"opened"}, {"refused"}, {False})
        ]
        if row[0]:
            lines.append(f"{kind:<10}" + "".join(f"{n:>9,}" for n in row))
    slowest = max(outcomes, key=lambda one: one.seconds)
    widest = max(outcomes, key=lambda one: one.grown)
    lines += [
        f"slowest: file {slowest.number} ({slowest.kind}), {slowest.seconds:.2f} s of CPU",
        f"largest: file {widest.number} ({widest.kind}), {widest.grown >> 20} MiB more",
    ]
    alike: dict[str, list[Outcome]] = {}
    for one in outcomes:
        if one.how not in {"opened", "refused"}:
            last = one.text.strip().splitlines() or [""]
            where = next((line for line in reversed(last) if "File" in line), "")
            alike.setdefault(f"{one.how}{where}{last[-1][:60]}", []).append(one)
    for found in sorted(alike.values(), key=len, reverse=True):
        one = found[0]
        lines.append(
            f"\n{len(found)}x {one.how}: file {one.number} ({one.kind}), {one.seconds:.2f} s, "
            f"{one.grown >> 20} MiB\n{one.text.strip()[-1500:]}"
        )
    return "\n".join(lines)
