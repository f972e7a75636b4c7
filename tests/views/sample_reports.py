"""Hand-built reports of a simulated training, without torch."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

import numpy as np

from nbmem.core.session.categories import ACTIVE, Category
from nbmem.core.session.session import DeviceInfo
from nbmem.core.units import GIB, MIB
from nbmem.report.ledger.balance import Ledger
from nbmem.report.model import Holding, Moment, Peak, PhaseRow, Report, Timeline

C = Category
H100 = DeviceInfo(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    total_bytes=85_017_493_504,
    virtual=False,
    torch="2.13.0",
    capability=(9, 0),
)
MS = 1_000_000


def ledger(held, *, total=H100.total_bytes, segment=0, process_known=True):
    """Make a balanced ledger; cached pieces fill the segments."""
    parts = [held.get(c, 0) for c in Category]
    free_blocks = max(segment - sum(parts[c] for c in ACTIVE), 0)
    parts[C.CACHED_STUCK] = free_blocks // 4
    parts[C.CACHED_RELEASABLE] = free_blocks - free_blocks // 4
    parts[C.FREE] = 0
    parts[C.FREE] = total - sum(parts)
    found = Ledger(total_bytes=total, held=tuple(parts), process_known=process_known)
    found.check()
    return found


@dataclass
class Run:
    """Build moments and phases as a training would."""

    device: DeviceInfo = H100
    process_known: bool = True
    held: dict = field(default_factory=lambda: {C.CONTEXT: 643 * MIB})
    segment: int = 0
    now: int = 0
    moments: list = field(default_factory=list)
    phases: list = field(default_factory=list)

    def ledger(self):
        return ledger(
            self.held,
            total=self.device.total_bytes,
            segment=self.segment,
            process_known=self.process_known,
        )

    def at(self, ms=0.0, **changes):
        """Let time pass, then change categories by bytes."""
        self.now += int(ms * MS)
        for name, count in changes.items():
            category = C[name.upper()]
            self.held[category] = self.held.get(category, 0) + int(count)
        active = sum(self.held.get(c, 0) for c in ACTIVE)
        if active > self.segment:
            self.segment = -(-active // (20 * MIB)) * 20 * MIB
        self.moments.append((self.now, self.ledger()))

    def phase(self, name, step, events, depth=0):
        """Run `events`, a list of (ms, changes), as one phase."""
        before, start, first = self.ledger(), self.now, len(self.moments)
        for ms, changes in events:
            self.at(ms, **changes)
        inside = [before, *(found for _, found in self.moments[first:])]
        top = max(inside, key=lambda found: found.allocated)
        end = self.ledger()
        self.phases.append(
            PhaseRow(
                name=name,
                step=step,
                depth=depth,
                t0_ns=start,
                t1_ns=self.now,
                allocated_before=before.allocated,
                allocated=end.allocated,
                reserved=end.reserved,
                peak_allocated=top.allocated,
                peak_reserved=max(found.reserved for found in inside),
                ledger_at_peak=top,
                ledger_at_end=end,
            )
        )

    def report(self, **changes):
        ledgers = [found for _, found in self.moments]
        top = max(range(len(ledgers)), key=lambda i: ledgers[i].allocated)
        t_ns = self.moments[top][0]
        rows = [r for r in self.phases if r.t0_ns < t_ns <= r.t1_ns]
        row = max(rows, key=lambda r: r.depth) if rows else None
        known = [found.process for found in ledgers if found.process is not None]
        peak = Peak(
            at=Moment(
                event=top * 7,
                t_ns=t_ns,
                phase=row and row.name,
                step=row and row.step,
                line="train.py:31 in train_step",
            ),
            allocated=ledgers[top].allocated,
            reserved=max(found.reserved for found in ledgers),
            active=ledgers[top].active,
            requested=ledgers[top].allocated - ledgers[top][C.ROUNDING],
            process=max(known) if known else None,
        )
        found = Report(
            title="cell [3]",
            device=self.device,
            duration_ns=self.now,
            peak=peak,
            ledger_at_start=ledgers[0],
            ledger_at_peak=ledgers[top],
            ledger_at_end=ledgers[-1],
            phases=tuple(self.phases),
            holdings=HOLDINGS,
            timeline=Timeline(
                t_ns=np.array([t for t, _ in self.moments], np.int64),
                event=np.arange(len(self.moments), dtype=np.int64) * 7,
                held=np.array([found.held for found in ledgers], np.int64),
                reserved=np.array([found.reserved for found in ledgers], np.int64),
                bands=tuple(
                    (r.t0_ns, r.t1_ns, r.name, r.step) for r in self.phases if r.depth == 0
                ),
            ),
            events=len(self.moments) * 7,
            dropped_events=0,
            error=None,
            notes=(),
        )
        return replace(found, **changes)


HOLDINGS = (
    Holding(
        name="layer1.0.conv3 output (32, 256, 56, 56) float32",
        category=C.ACTIVATIONS,
        requested=102_760_448,
        block=102_760_448,
        born_in="forward, step 2",
        line="resnet.py:146 in forward",
    ),
    Holding(
        name=None,
        category=C.WORKSPACE,
        requested=32 * MIB,
        block=32 * MIB,
        born_in="forward, step 0",
        line=None,
    ),
    Holding(
        name="model.fc.weight (1000, 2048) float32",
        category=C.WEIGHTS,
        requested=8_192_000,
        block=8_192_000,
        born_in=None,
        line=None,
    ),
)
WEIGHTS, BUFFERS, BATCH = 97.5 * MIB, 0.2 * MIB, 18.4 * MIB


def train_step(run, step, *, slow=1.0, layers=12, scale=1.0):
    """Run one step of a CNN."""
    part = 700 * MIB * scale / layers
    run.phase("input", step, [(0.4 * slow, {"inputs": BATCH})])
    forward = [(0.9 * slow, {"activations": part, "rounding": 0.7 * MIB}) for _ in range(layers)]
    if not run.held.get(C.WORKSPACE):
        forward[0][1]["workspace"] = 32 * MIB
    for i in range(1, layers, 3):
        forward.insert(2 * i % layers, (0.2 * slow, {"temporaries": 26 * MIB}))
        forward.insert(2 * i % layers + 1, (0.1 * slow, {"temporaries": -26 * MIB}))
    run.phase("forward", step, forward)
    fresh = run.held.get(C.WORKSPACE, 0) < 64 * MIB
    backward = []
    for i in range(layers):
        backward.append(
            (
                0.9 * slow,
                {
                    "gradients": WEIGHTS / layers,
                    "output_gradients": 98 * MIB if i == 0 else 0,
                    "temporaries": 60 * MIB,
                    "workspace": 32 * MIB if i == 1 and fresh else 0,
                    "rounding": 0.4 * MIB,
                },
            )
        )
        backward.append(
            (0.5 * slow, {"activations": -part, "temporaries": -60 * MIB, "rounding": -1.1 * MIB})
        )
    backward.append((0.1, {"output_gradients": -98 * MIB}))
    run.phase("backward", step, backward)
    first = not run.held.get(C.OPTIMIZER_STATE)
    run.phase(
        "optimizer",
        step,
        [
            (0.8 * slow, {"optimizer_state": WEIGHTS if first else 0}),
            (0.6, {"temporaries": 12 * MIB}),
            (0.3, {"temporaries": -12 * MIB}),
        ],
    )
    run.phase("zero_grad", step, [(0.3, {"gradients": -WEIGHTS, "inputs": -BATCH})])
    for name in ("gradients", "activations", "rounding", "inputs"):
        run.held[C[name.upper()]] = max(0, run.held[C[name.upper()]])


def loaded(**options):
    run = Run(**options)
    run.at()
    run.phase("load", None, [(6, {"weights": WEIGHTS / 8, "buffers": BUFFERS / 8})] * 8)
    return run


@functools.cache
def cnn(steps=3, *, slow_first=1.0, **options):
    run = loaded(**options)
    for step in range(steps):
        train_step(run, step, slow=slow_first if step == 0 else 1.0)
    return run.report()


@functools.cache
def cold_cnn():
    """Make a first cell: step 0 loads kernels and is slow."""
    return cnn(slow_first=90.0)


@functools.cache
def out_of_memory():
    """A small card, another process on it, and a batch that does not fit."""
    device = replace(H100, name="NVIDIA T4", total_bytes=4 * GIB, virtual=True)
    run = loaded(device=device)
    run.held[C.OTHER_PROCESSES] = 700 * MIB
    train_step(run, 0, scale=1.2)
    run.phase("input", 1, [(0.4, {"inputs": BATCH})])
    run.phase("forward", 1, [(0.9, {"activations": 190 * MIB, "rounding": MIB}) for _ in range(10)])
    return run.report(
        error="OutOfMemoryError: CUDA out of memory. Tried to allocate 392.00 MiB. GPU 0 has a "
        "total capacity of 4.00 GiB of which 214.00 MiB is free.",
        notes=("Stacks were taken for the first step only.",),
        dropped_events=1234,
    )


@functools.cache
def without_phases():
    run = Run()
    run.at()
    for i in range(30):
        run.at(40, user_tensors=100 * MIB if i % 3 else -60 * MIB if i else 0)
    return run.report(title="x = [torch.ones(...)]")


@functools.cache
def without_process():
    return cnn(process_known=False)


@functools.cache
def long_loop(steps=500):
    run = loaded()
    for step in range(steps):
        train_step(run, step, layers=4, scale=1.0 + 0.3 * (step == 317))
    return run.report(title="train.py")


@functools.cache
def hostile():
    bad = '<script>alert("1")</script>&<img src=x onerror=alert(1)>\x1b[31m\x00'
    run = loaded(device=replace(H100, name=f"H100 {bad}"))
    run.phase(bad, 0, [(5, {"user_tensors": 64 * MIB})])
    found = run.report(title=bad, error=f"RuntimeError: {bad}", notes=(bad,))
    held = Holding(name=bad, category=C.USER_TENSORS, requested=5, block=512, born_in=bad, line=bad)
    at = replace(found.peak.at, line=bad, phase=bad)
    return replace(found, holdings=(held,), peak=replace(found.peak, at=at))


@functools.cache
def nothing_happened():
    run = Run()
    run.held = {}
    run.at()
    found = run.report(title="1 + 1", events=0, holdings=())
    at = Moment(event=0, t_ns=0)
    return replace(found, peak=replace(found.peak, at=at))


@functools.cache
def small():
    """Three phases in round numbers: the golden text."""
    run = Run()
    run.held = {C.CONTEXT: 600 * MIB, C.OTHER_PROCESSES: 2 * GIB}
    run.at(weights=100 * MIB)
    run.phase("forward", 0, [(10, {"activations": 300 * MIB, "rounding": 3 * MIB // 2})])
    run.phase(
        "backward",
        0,
        [
            (12, {"gradients": 100 * MIB, "temporaries": 50 * MIB}),
            (8, {"activations": -300 * MIB, "temporaries": -50 * MIB, "rounding": -MIB}),
        ],
    )
    run.phase("optimizer", 0, [(2, {"optimizer_state": 200 * MIB})])
    return run.report(holdings=HOLDINGS[1:])


ALL = {
    "cnn": cnn,
    "cold_cnn": cold_cnn,
    "out_of_memory": out_of_memory,
    "without_phases": without_phases,
    "without_process": without_process,
    "long_loop": long_loop,
    "hostile": hostile,
    "nothing_happened": nothing_happened,
    "small": small,
}
