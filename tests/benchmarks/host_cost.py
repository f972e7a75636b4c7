"""Measure the cost of tracing a training step on the CPU.

`python -m tests.benchmarks.host_cost [--steps N] [--rounds N]`: CPU seconds of this process, so
that what else the machine does is no part of it, with one thread. Looks at the graph may take a
tenth of a second in any case (`capture/record/time_budget.py`): in a short loop that weighs most.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

import nbmem.api.tracing as nbmem


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def pictures() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(4):
        layers += [nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


CASES = {
    "small MLP": (small, (32, 256), 400),
    "small CNN": (pictures, (16, 3, 48, 48), 30),
    "transformer": (transformer, (8, 64, 128), 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, help="of each loop; else those of the case")
    parser.add_argument("--only", default="", help="a part of the case's name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {name: case for name, case in CASES.items() if options.only in name}
    for name, (build, shape, steps) in chosen.items():
        measure(name, build(), shape, options.steps or steps, options.rounds)


def measure(name: str, model: nn.Module, shape: tuple[int, ...], steps: int, rounds: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def run() -> float:
        begin = time.process_time()
        for _ in range(steps):
            x = torch.randn(shape)
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.process_time() - begin) / steps * 1e6

    def traced() -> float:
        with nbmem.trace(name, namespace={"model": model, "optimizer": optimizer}):
            return run()

    run(), traced()
    pairs = [(run(), traced()) for _ in range(rounds)]
    plain = statistics.median(first for first, _ in pairs)
    ratio = statistics.median(second / first for first, second in pairs)
    extra = statistics.median(second - first for first, second in pairs)
    print(
        f"{name:<12} {steps} steps, untraced {plain:8.0f} us each, "
        f"traced {ratio - 1:+.1%} ({extra:+.0f} us)",
        flush=True,
    )


if __name__ == "__main__":
    main()
