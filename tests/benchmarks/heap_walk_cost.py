"""Measure the cost of a heap walk among a million Python objects.

The shapes are those of data sets in a notebook: rows as dictionaries, lists, instances with lists
inside, tables. Each comes beside a trained model, a list of losses with their graphs, and a
reference cycle that must be found.
"""

from __future__ import annotations

import gc
import statistics
import time

import torch
from torch import nn

from nbmem import virtual
from nbmem.capture.heap import walk

BUDGET_S = 0.5


class Row:
    def __init__(self, i: int) -> None:
        self.number = i
        self.tokens = [i]


SHAPES = {
    "nothing else": list,
    "700 thousand lists": lambda: [[i] for i in range(700_000)],
    "350 thousand instances, each with a list": lambda: [Row(i) for i in range(350_000)],
    "175 thousand nested records": lambda: [{"a": [i], "b": {"c": [i]}} for i in range(175_000)],
    "one table of 700 thousand lists": lambda: {i: [i] for i in range(700_000)},
    "two million dictionaries of numbers": lambda: [{"i": i} for i in range(2_000_000)],
}


def notebook() -> dict[str, object]:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(100))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.zeros(8, 64, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    losses = [model(x).sum() for _ in range(5)]
    return {"model": model, "optimizer": optimizer, "losses": losses}


def leave_a_cycle() -> None:
    row = Row(0)
    row.me, row.x = row, torch.zeros(1 << 20, device="cuda")


def main() -> None:
    slow = []
    with virtual.activated("H100 80GB"):
        for name, make in SHAPES.items():
            names = {**notebook(), "data": make()}
            gc.collect()
            gc.disable()  # or the cycle would be gone
            leave_a_cycle()
            seconds = []
            for _ in range(7):
                begun = time.process_time()  # one thread, no waiting: other programs do not count
                found = walk(names).by_device[0]
                seconds.append(time.process_time() - begun)
            cycles = sum(held.name.startswith("a reference cycle") for held in found)
            gc.enable()
            median = statistics.median(seconds)
            slow += [name] if median > BUDGET_S else []
            print(
                f"{name:<42} {len(gc.get_objects()):>9,} tracked objects  {len(found):>5} storages"
                f"  median {1e3 * median:>4.0f} ms  worst {1e3 * max(seconds):>4.0f} ms"
                f"  cycles found: {cycles}"
            )
    if slow:
        raise SystemExit(f"above {BUDGET_S} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()
