"""Measure the cost of tracing a training step on a virtual card.

On the virtual card (or, with --real, on a real one). The virtual card computes nothing, so a step
on it is all Python: the ratio there is an upper bound for one that the CPU bounds, and the cost in
microseconds is what counts.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

import nbmem.api.tracing as nbmem
from nbmem import virtual


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def deep() -> nn.Module:
    """53 convolutions, as ResNet-50 has; 160 modules."""
    layers = [nn.Conv2d(3, 64, 3, padding=1)]
    for _ in range(52):
        layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


CASES = {"small MLP": (small, (32, 256)), "53 convolutions": (deep, (8, 3, 32, 32))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="on a real card")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if not options.real:
        virtual.activate("H100 80GB")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, (build, shape) in CASES.items():
        measure(name, build().cuda(), shape, options)


def measure(name: str, model: nn.Module, shape: tuple[int, ...], options) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def steps() -> float:
        begin = time.perf_counter()
        for _ in range(options.steps):
            x = torch.randn(shape, device="cuda")
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / options.steps * 1e6

    def with_history() -> float:
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=1_000_000)
        took = steps()
        torch.cuda.memory._record_memory_history(None)
        return took

    def traced() -> float:
        with nbmem.trace(name, namespace={}):
            return steps()

    steps()
    rounds = [(steps(), with_history(), traced()) for _ in range(options.rounds)]
    plain, history, trace = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"{name:<16} untraced {plain:7.0f} us a step", end="   ")
    own = f"{_ratio(rounds, 1, 0):.3f} ({history - plain:+.0f} us)"
    print(f"torch's history alone {own}", end="   ")
    print(f"traced {_ratio(rounds, 2, 0):.3f} ({trace - plain:+.0f} us)", end="   ")
    print(f"nbmem's own part {trace - history:+.0f} us")


def _ratio(rounds, over: int, under: int) -> float:
    return statistics.median(row[over] / row[under] for row in rounds)


if __name__ == "__main__":
    main()
