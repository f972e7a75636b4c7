"""Measure CPU time and memory of large programs.

`python -m tests.benchmarks.large_programs` runs all; names run some; `--scale 0.1` is smaller.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.core.session.session import Session

ROOT = Path(__file__).parents[2]


def stage(name: str, work: Callable[[], Any]) -> Any:
    """Run one stage and print its cost."""
    begun = time.process_time()
    found = work()
    took = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"  {name:<34}{took:8.2f} s CPU   peak RSS {peak:>6,} MB", flush=True)
    return found


def report_of(trace: Any) -> None:
    """Render everything that is drawn under a cell."""
    report = stage("report", trace.report)
    stage("text", lambda: str(trace))
    stage("notebook output", trace._repr_mimebundle_)
    print(f"    {report.events:,} events, {len(report.phases):,} phases shown")


def read(session: Session) -> None:
    """Run the stages of an existing session."""
    from nbmem.api.tracing import Trace

    trace = Trace("benchmark")
    trace.session = session
    report_of(trace)


def events(scale: float) -> None:
    """Ten million events of a training loop."""
    from tests.benchmarks.load_to_report import training_of

    read(stage("(made)", lambda: training_of(int(10_000_000 * scale))))


def phases(scale: float) -> None:
    """A hundred thousand steps of a small loop: 300,000 phases."""
    from tests.benchmarks.load_to_report import Training

    def made() -> Session:
        training = Training()
        training.sizes = [1 << 20]
        training.load()
        for step in range(int(100_000 * scale)):
            training.step(step)
        return training.session()

    read(stage("(made)", made))


def cards(scale: float) -> None:
    """Sixty-four cards that did the same."""
    from tests.benchmarks.load_to_report import training_of

    one = training_of(20_000)
    count = max(2, int(64 * scale))
    devices = tuple(
        replace(one.devices[0], info=replace(one.devices[0].info, index=i)) for i in range(count)
    )
    spans = tuple(replace(s, first=s.first * count, last=s.last * count) for s in one.spans)
    read(replace(one, devices=devices, spans=spans))


def modules(scale: float) -> None:
    """A traced step of a model of 10,000 modules."""
    _traced_step(lambda nn, n: [nn.Sequential(nn.Linear(8, 8)) for _ in range(n // 2)], scale)


def parameters(scale: float) -> None:
    """A traced step of a model of 50,000 parameters."""
    _traced_step(lambda nn, n: [nn.Linear(4, 4) for _ in range(5 * n // 2)], scale)


def _traced_step(layers: Callable[[Any, int], list[Any]], scale: float) -> None:
    import torch
    from torch import nn

    import nbmem
    from nbmem import virtual

    with virtual.activated("H100 80GB"):
        model = nn.ModuleList(layers(nn, int(10_000 * scale))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        width = next(model.parameters()).shape[-1]
        x = torch.zeros(4, width, device="cuda")

        class Chain(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = model

            def forward(self, x: Any) -> Any:
                for layer in self.layers:
                    x = torch.relu(layer(x))
                return x

        chain = Chain()

        def step() -> None:
            optimizer.zero_grad()
            chain(x).sum().backward()
            optimizer.step()

        step()
        stage("untraced step", step)
        names = {"chain": chain, "optimizer": optimizer, "x": x}
        trace = nbmem.trace("step", namespace=names)

        def traced() -> None:
            with trace:
                step()

        stage("traced step, start and end", traced)
        report_of(trace)


def loop(scale: float) -> None:
    """Twenty thousand steps of a tiny model, traced in one go."""
    import torch
    from torch import nn

    import nbmem
    from nbmem import virtual

    with virtual.activated("T4"):
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.zeros(4, 8, device="cuda")

        def steps(count: int) -> None:
            for _ in range(count):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()

        count = int(20_000 * scale)
        stage("untraced", lambda: steps(count))
        trace = nbmem.trace("loop", namespace={"model": model, "optimizer": optimizer}).start()
        stage("traced", lambda: steps(count))
        stage("end", trace.stop)
        report_of(trace)


def cells(scale: float) -> None:
    """Trace an empty cell once and a thousand times."""
    import torch  # noqa: F401 - not part of what a traced cell costs
    from IPython.core.interactiveshell import InteractiveShell

    shell, out = InteractiveShell.instance(), io.StringIO()

    def cell(text: str) -> None:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            shell.run_cell(text)

    for text in (
        "%load_ext nbmem",
        "%nbmem gpu T4",
        "import torch; x = torch.zeros(1, device='cuda')",
    ):
        cell(text)
    stage("the first", lambda: cell("%%memtrace\n1"))
    count = int(1_000 * scale)
    stage(f"{count:,} more", lambda: [cell("%%memtrace\n1") for _ in range(count)])
    stage("the history", lambda: cell("%nbmem history"))


class Node:
    """An object of the user's."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.others: list[Node] = []


def _linked(count: int) -> Any:
    head = None
    for number in range(count):
        node = Node(number)
        node.others = head  # type: ignore[assignment]
        head = node
    return head


def _tree(count: int) -> Any:
    nodes = [Node(i) for i in range(count)]
    for i in range(1, count):
        nodes[(i - 1) // 2].others.append(nodes[i])
    return nodes[0]


def _graph(count: int) -> Any:
    drawn, nodes = random.Random(0), [Node(i) for i in range(count)]
    for node in nodes:
        node.others = [nodes[drawn.randrange(count)] for _ in range(4)]
    return nodes


def heaps(scale: float) -> None:
    """Walk the heap among 400,000 objects of several forms."""
    import torch
    from torch import nn

    from nbmem import virtual
    from nbmem.capture.heap import walk

    count = int(400_000 * scale)
    shapes: dict[str, Callable[[], Any]] = {
        "nothing else": list,
        "objects": lambda: [Node(i) for i in range(count)],
        "dictionaries": lambda: [{"a": i, "b": [i]} for i in range(count)],
        "a linked list": lambda: _linked(count),
        "a tree": lambda: _tree(count),
        "a graph": lambda: _graph(count),
    }
    with virtual.activated("H100 80GB"):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20))).cuda()
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        for name, make in shapes.items():
            gc.disable()
            names = {"model": model, "data": make()}
            gc.enable()
            gc.collect()
            stage(name, lambda names=names: walk(names))  # type: ignore[misc]
            del names


_ALL = (events, phases, cards, modules, parameters, loop, cells, heaps)
SCENARIOS = {scenario.__name__: scenario for scenario in _ALL}


def main() -> None:
    """Run the scenarios, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.names or SCENARIOS:
        work = SCENARIOS[name]
        if options.here:
            print(f"{name}: {work.__doc__}", flush=True)
            work(options.scale)
        else:
            again = (
                "-m",
                "tests.benchmarks.large_programs",
                name,
                "--here",
                "--scale",
                str(options.scale),
            )
            subprocess.run([sys.executable, *again], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
