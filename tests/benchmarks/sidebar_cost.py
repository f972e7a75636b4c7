"""Measure the sidebar's cost, the delay of messages and their bytes.

In a real kernel on the virtual card, which computes nothing: a step on it is all Python, so the
ratio is an upper bound. With and without readings in turns, in one cell. Steps are counted in the
process's CPU time, all threads together, which other work on the machine disturbs less than the
clock. The receiver is a client on iopub, as a page's server is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.sidebar.kernel import LOAD, Kernel

PREPARE = """\
from nbmem.frontends.notebook import extension
hub = extension._LOADED[get_ipython()]._sidebar.hub
import statistics
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20))).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
def steps(seconds):
    begin, count = time.process_time(), 0
    while (took := time.process_time() - begin) < seconds:
        model(torch.zeros(8, 256, device='cuda')).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        count += 1
    return took / count * 1e6
"""
COMPARE = """\
hub.hz, rounds = {hz}, []
for n in range({rounds} + 1):
    hub._awake.clear(); time.sleep(1 / hub.hz)
    off = steps({seconds})
    hub._awake.set()
    rounds.append((off, steps({seconds})))
ratios = [on / off for off, on in rounds[1:]]
print(statistics.median(off for off, _ in rounds[1:]), *sorted(ratios))
"""
TICKS = """\
import threading
names, spent = [], []
def tick():
    for n in range(500):
        keep = torch.zeros(128 * (n + 1), device='cuda')
        cpu = time.thread_time()
        hub._talk(hub._tick)
        spent.append((time.thread_time() - cpu) * 1e6)
thread = threading.Thread(target=tick)
hub._awake.clear(); time.sleep(0.3); thread.start(); thread.join(); hub._awake.set()
print(statistics.median(spent))
"""
CALM = """\
hub.hz, used = {hz}, []
def calm():
    kept, begin = [], time.process_time()
    for _ in range(100):
        kept.append(torch.zeros(128, device='cuda')); time.sleep(0.02)
    return (time.process_time() - begin) / 2
for n in range(5):
    hub._awake.clear(); time.sleep(1 / hub.hz)
    off = calm()
    hub._awake.set()
    used.append(calm() - off)
print(statistics.median(used))
"""
BUSY = {
    "sleeping": "time.sleep(0.01)",
    "in Python": "sum(range(1000))",
    "multiplying": "a @ a",
    "printing": "print('x' * 50)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    kernel = Kernel()
    try:
        kernel.run(LOAD)
        kernel.run(PREPARE)
        for what, line in (("untraced", ""), ("traced", "%%memtrace\n")):
            for hz in (4, 10):
                code = COMPARE.format(hz=hz, rounds=options.rounds, seconds=options.seconds)
                off, *ratios = map(float, kernel.run(line + code).text().split())
                low, middle, high = statistics.quantiles(ratios)
                print(
                    f"{what:<9} {off:6.0f} us a step; with {hz} readings a second x {middle:.4f} "
                    f"(half of {options.rounds} pairs: {low:.4f} to {high:.4f})"
                )
        print(f"a reading that is pushed: {float(kernel.run(TICKS).text()):.0f} us of its thread")
        for hz in (4, 10):
            used = float(kernel.run(CALM.format(hz=hz)).text())
            print(f"{hz} readings a second, each pushed: {used:.2%} of one core, all threads")
        for name, line in BUSY.items():
            latency(kernel, name, line)
    finally:
        kernel.close()


def latency(kernel: Kernel, name: str, line: str) -> None:
    """Push something new for three seconds of a busy cell."""
    code = (
        "hub.hz = 10; a = torch.Tensor.cpu(torch.ones(1)) * torch.ones(300, 300, device='cpu')\n"
        "kept, end, due = [], time.time() + 3, 0\n"
        "while time.time() < end:\n"
        f"    {line}\n"
        "    if time.time() > due:\n"
        "        due = time.time() + 0.02; kept.append(torch.zeros(128, device='cuda'))"
    )
    begin = time.time()
    ran = kernel.run(code)
    took = time.time() - begin
    late = sorted(p.received * 1000 - p.message.t_ms for p in ran.pushes)
    frames = [m for m in ran.messages if m["msg_type"] == "comm_msg"]
    size = sum(len(part) for m in frames for part in kernel.client.session.serialize(m))
    at = [p.received for p in ran.pushes]
    gap = max(b - a for a, b in pairwise(at))
    print(
        f"{name:<12} {len(late)} pushes in {took:.1f} s, median {statistics.median(late):.1f} ms, "
        f"p95 {late[int(len(late) * 0.95)]:.1f}, last {late[-1]:.1f}; longest gap {gap * 1e3:.0f} "
        f"ms; {size / len(frames):,.0f} B a push, {size / took:,.0f} B a second"
    )


if __name__ == "__main__":
    main()
