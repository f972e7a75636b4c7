"""Stress test of threads that train on one virtual card.

    python -m tests.virtual.thread_stress --minutes 5

Threads change places after each microsecond. What they take together must be what each takes
alone, and the card's figures must agree with each other and with the history.
"""

import argparse
import contextlib
import gc
import random
import sys
import threading
import time
import traceback

import torch
from torch import nn
from torch.nn import functional

import nbmem
from nbmem import virtual

SWITCH_S = 1e-6
"""After so long another thread may run."""
COUNTERS = ("allocation.all.allocated", "allocated_bytes.all.allocated")
TOO_MUCH = 1 << 42


class _OwnError(Exception):
    """Raised by a job on purpose."""


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 + ctx.saved_tensors[0] * 0


def _net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16)
    ).cuda()


def _step(net, optimizer, kind, size):
    inputs = torch.randn(size, 3, 8, 8).cuda()
    targets = torch.zeros(size, dtype=torch.long, device="cuda")
    with torch.autocast("cuda", enabled=kind == "autocast"):
        loss = functional.cross_entropy(net(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if kind == "stream":
        with torch.cuda.stream(torch.cuda.Stream()):
            _Double.apply(inputs.requires_grad_()).sum().backward()
    elif kind == "views":
        base = torch.zeros(size, 4, device="cuda", requires_grad=True)
        written = base * 2
        written[0] = 1
        (written.t().sum() + written.prod()).backward()
    elif kind == "twice":
        grad = torch.autograd.grad((inputs.requires_grad_() ** 3).sum(), inputs, create_graph=True)
        grad[0].sum().backward()


def _disturb(kind):
    if kind == "oom":
        with contextlib.suppress(torch.OutOfMemoryError):
            torch.empty(TOO_MUCH, device="cuda")
    elif kind == "shapes":
        with contextlib.suppress(RuntimeError):
            torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
    elif kind == "cache":
        torch.cuda.empty_cache()
        torch.cuda.memory_stats()
        torch.cuda.memory_snapshot()


def job(seed, steps):
    """Train in one thread with disturbances chosen by the seed."""
    choose = random.Random(seed)
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        kind = choose.choice(("plain", "autocast", "stream", "views", "twice"))
        _step(net, optimizer, kind, choose.randint(2, 9))
        _disturb(choose.choice(("oom", "shapes", "cache", "nothing")))
    with contextlib.suppress(_OwnError):
        net(torch.ones(2, 3, 8, 8, device="cuda"))
        raise _OwnError


def run_concurrently(jobs, *, traced):
    """Run jobs at the same time; return failures and the report."""
    failures = []

    def guarded(number, work):
        try:
            with (
                nbmem.trace(f"job {number}") if traced and number == 0 else contextlib.nullcontext()
            ):
                work()
        except BaseException:  # noqa: BLE001 - whatever it is, the run has failed
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=guarded, args=one) for one in enumerate(jobs)]
    before, notes = sys.getswitchinterval(), []
    sys.setswitchinterval(SWITCH_S)
    try:
        with nbmem.trace("all") if traced else contextlib.nullcontext() as trace:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if trace is not None:
            notes = list(trace.report().notes)
    finally:
        sys.setswitchinterval(before)
    return failures + [str(note) for note in notes if "differ" in str(note)]


def _taken(run):
    """Count blocks and bytes of a run, without cuBLAS's workspaces."""
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_stats()
    problems = run()
    gc.collect()
    after = torch.cuda.memory_stats()
    workspaces = torch.cuda.memory_allocated()
    count = len([b for s in torch.cuda.memory_snapshot() for b in s["blocks"] if _lives(b)])
    grown = [after[name] - before[name] for name in COUNTERS]
    return [grown[0] - count, grown[1] - workspaces], problems


def _lives(block):
    return block["state"] == "active_allocated"


def balance_errors():
    """Return contradictions of the card's figures once nothing is live."""
    blocks = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"]]
    listed = sum(block["size"] for block in blocks if _lives(block))
    held = torch.cuda.memory_allocated()
    found = [f"{virtual.live_bytes()} B of tensors live"] if virtual.live_bytes() else []
    if listed != held:
        found.append(f"blocks have {listed} B, the counter {held} B")
    torch._C._cuda_clearCublasWorkspaces()
    if torch.cuda.memory_allocated():
        found.append(f"{torch.cuda.memory_allocated()} B are left")
    torch.cuda.empty_cache()
    if torch.cuda.memory_reserved():
        found.append(f"{torch.cuda.memory_reserved()} B stay reserved")
    return found


def run(seed, *, threads=6, steps=3, traced=False):
    """Compare concurrent jobs with sequential ones."""
    jobs = [lambda n=n: job(seed * 100 + n, steps) for n in range(threads)]
    alone, problems = _taken(
        lambda: [f for one in jobs for f in run_concurrently([one], traced=False)]
    )
    problems += balance_errors()
    beside, more = _taken(lambda: run_concurrently(jobs, traced=traced))
    problems += [*more, *balance_errors()]
    if alone != beside:
        problems.append(f"one after another they took {alone} blocks and bytes, together {beside}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    until, seed, failed = time.monotonic() + 60 * options.minutes, options.seed, 0
    with virtual.activated("T4"):
        torch.zeros(1, device="cuda")  # before it there are no counters
        while time.monotonic() < until:
            problems = run(seed, threads=2 + seed % 7, traced=bool(seed % 2))
            failed += bool(problems)
            for problem in problems:
                sys.stdout.write(f"seed {seed}: {problem}\n")
            seed += 1
    sys.stdout.write(f"{seed - options.seed} runs, {failed} failed\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
