"""Measure the time from a large saved session to its report and views."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from nbmem.allocator.caching import CachingAllocator
from nbmem.core.files.session import open_session, save_session
from nbmem.core.session.categories import Category
from nbmem.core.session.events import NOT_KNOWN, Events, Layout
from nbmem.core.session.session import (
    CardSamples,
    CounterSamples,
    DeviceInfo,
    DeviceTrace,
    Session,
    StorageLabels,
)
from nbmem.core.session.spans import Span
from nbmem.core.units import GIB, MIB

LAYERS = 200
CONTEXT = 600 * MIB
TOTAL = 80 * GIB
EVENT_NS = 2_000


class Training:
    """A training loop on the simulated allocator, as a recording."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.spans: list[tuple[str, int, int, int]] = []
        self.marks: list[tuple[int, int, int, int, int]] = []
        self.identities: list[tuple[int, int, int, int, int]] = []
        self.names: list[str] = []
        self.allocator = CachingAllocator(total_bytes=TOTAL, on_event=self._note)
        self.sizes = np.random.default_rng(0).integers(1 << 8, 1 << 23, LAYERS).tolist()

    def _note(self, action: int, addr: int, size: int, stream: int) -> None:
        self.rows.append((action, addr, size, stream))

    def _mark(self) -> None:
        a = self.allocator
        self.marks.append((len(self.rows), a.allocated, a.active, a.requested, a.reserved))

    def _tag(self, addr: int, size: int, category: Category, name: str) -> None:
        self.identities.append((len(self.rows), addr, size, category, len(self.names)))
        self.names.append(name)

    def load(self) -> None:
        """Take the weights."""
        self._mark()
        for layer, size in enumerate(self.sizes):
            addr = self.allocator.malloc(size)
            self._tag(addr, size, Category.WEIGHTS, f"model.{layer}.weight ({size // 4},) float32")
        self._phase("load", None, 0)

    def _phase(self, name: str, step: int | None, first: int) -> None:
        self.spans.append((name, -1 if step is None else step, first, len(self.rows)))
        self._mark()

    def step(self, step: int) -> None:
        """Run forward, backward and optimizer."""
        malloc, free = self.allocator.malloc, self.allocator.free
        first, kept, gradients = len(self.rows), [], []
        for size in self.sizes:
            temporary = malloc(size // 2 + 1)
            kept.append(malloc(size))
            free(temporary)
        self._phase("forward", step, first)
        first = len(self.rows)
        for size in reversed(self.sizes):
            gradients.append(malloc(size))
            free(kept.pop())
        self._phase("backward", step, first)
        first = len(self.rows)
        for gradient in gradients:
            free(gradient)
        self._phase("optimizer", step, first)

    def session(self) -> Session:
        """Return the session as the recorder would build it."""
        begin = 1_700_000_000_000_000_000
        device = DeviceTrace(
            info=DeviceInfo(
                index=0,
                name="NVIDIA H100 80GB HBM3",
                total_bytes=TOTAL,
                virtual=True,
                torch="2.13.0",
                capability=(9, 0),
            ),
            release="2.13.0",
            settings={},
            start=Layout.empty(),
            events=Events.from_rows(
                (*row, begin + at * EVENT_NS, -1) for at, row in enumerate(self.rows)
            ),
            end=self.allocator.layout(),
            dropped=0,
            counter_samples=CounterSamples.from_rows(
                (begin + mark[0] * EVENT_NS, *mark) for mark in self.marks
            ),
            samples=CardSamples.from_rows(
                (begin + at * EVENT_NS, held + CONTEXT, held + CONTEXT, held, NOT_KNOWN)
                for at, *_, held in self.marks
            ),
            storage_labels=StorageLabels.from_rows(self.identities),
        )
        end = len(self.rows)
        cell = Span(
            kind="cell",
            name="benchmark",
            t0_ns=begin,
            t1_ns=begin + end * EVENT_NS,
            first=(0,),
            last=(end,),
        )
        phases = [
            Span(
                kind="phase",
                name=phase,
                step=None if step < 0 else step,
                parent=0,
                t0_ns=begin + first * EVENT_NS,
                t1_ns=begin + last * EVENT_NS,
                first=(first,),
                last=(last,),
            )
            for phase, step, first, last in self.spans
        ]
        return Session(
            name="benchmark",
            created_ns=begin + end * EVENT_NS,
            devices=(device,),
            spans=(cell, *phases),
            names=tuple(self.names),
        )


def training_of(events: int) -> Session:
    """Make a session of at least so many events."""
    training = Training()
    training.load()
    step = 0
    while len(training.rows) < events:
        training.step(step)
        step += 1
    return training.session()


def main() -> None:
    """Print how long each stage takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    from nbmem.report.analysis import build_report
    from nbmem.views.html import render_page
    from nbmem.views.text import render_text

    with tempfile.TemporaryDirectory() as folder:
        recorded = training_of(options.events)
        path = save_session(recorded, Path(folder, "benchmark.nbmem"))
        events = len(recorded.devices[0].events)
        print(f"{events:,} events, a file of {path.stat().st_size / MIB:.1f} MiB")
        for _ in range(options.rounds):
            clock = [time.perf_counter()]
            session = open_session(path)
            clock.append(time.perf_counter())
            report = build_report(session)
            clock.append(time.perf_counter())
            render_text(report)
            clock.append(time.perf_counter())
            render_page(report)
            clock.append(time.perf_counter())
            opened, built, text, page = np.diff(clock)
            print(
                f"open {opened:5.2f} s  report {built:5.2f} s  text {text:5.2f} s  "
                f"page {page:5.2f} s  together {clock[-1] - clock[0]:5.2f} s"
            )
        ledger = report.ledger_at_peak
        ledger.check()
        print(f"peak {report.peak.allocated / MIB:,.1f} MiB, {len(report.phases)} phases")


if __name__ == "__main__":
    main()
