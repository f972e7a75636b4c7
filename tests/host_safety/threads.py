"""Threads that train while they are traced, in a process that may crash.

    python -m tests.host_safety.threads                  every scene, on the CPU and a virtual card
    python -m tests.host_safety.threads --rounds 50      the same fifty times, with other seeds
    python -m tests.host_safety.threads --only hogwild --steps 1000

Autograd and torch's operators work without the interpreter's lock, so a look at a tensor that
another thread uses is a data race in C++. Each scene runs in a process of its own, since what it is
about ends in SIGSEGV. It has passed if the process ends well, each trace has a session whose books
balance, nothing is left in torch, and the values are those of the same scene without a trace.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import nbmem
from nbmem import virtual
from nbmem.api.tracing import Trace, running_recorder
from nbmem.capture.heap import walk
from nbmem.core.errors import NbmemError
from tests.host_safety.process_state import state, state_differences

THREADS = 6
STEPS = 200
LIMIT_S = 300
"""How long a process may take; a deadlock is a fault, too."""
WIDTH = 16
OPTIMIZERS: tuple[Callable[[Any], torch.optim.Optimizer], ...] = (
    lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    lambda p: torch.optim.RMSprop(p, lr=0.01),
    lambda p: torch.optim.Adagrad(p, lr=0.01),
    lambda p: torch.optim.LBFGS(p, lr=0.01, max_iter=2),
)


class Stage(NamedTuple):
    """Device and size of a scene.

    Attributes:
        device: `cpu` or `cuda`.
        threads: How many train.
        steps: Of each.
        seed: Of all its random numbers.
        names: The notebook's names, which the traces look into.
        traced: Whether there are traces.
        traces: Those that have ended.
    """

    device: str
    threads: int
    steps: int
    seed: int
    names: dict[str, Any]
    traced: bool
    traces: list[Trace]

    @contextlib.contextmanager
    def trace(self, name: str = "scene") -> Iterator[None]:
        """Trace a stretch of the scene, unless it runs without."""
        if not self.traced:
            yield
            return
        with nbmem.trace(name, namespace=self.names) as traced:
            yield
        self.traces.append(traced)

    def generator(self, number: int = 0) -> torch.Generator:
        """Random numbers of one thread's own."""
        return torch.Generator().manual_seed(1000 * self.seed + number)

    def tensor(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        """Random numbers on the device."""
        return torch.randn(*shape, generator=generator).to(self.device)

    def model(self, generator: torch.Generator) -> nn.Module:
        """A model whose weights depend on the generator alone."""
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
        return model.to(self.device)


class Doubled(torch.autograd.Function):
    """A function whose backward is Python."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2 + x * 0


def loss_of(model: nn.Module, x: torch.Tensor, step: int) -> torch.Tensor:
    """A forward, of a kind that depends on the step."""
    kind = step % 4
    if kind == 1:
        y = checkpoint(model, x, use_reentrant=False)
    elif kind == 2:
        x = x.clone().requires_grad_()
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        y = y + slope.square().mean()
    elif kind == 3:
        y = Doubled.apply(model(x))
    else:
        y = model(x)
    return y.square().mean()


def train(
    stage: Stage,
    number: int,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[torch.Tensor]:
    """One thread's training; returns its weights."""
    generator = stage.generator(number)
    model = model or stage.model(generator)
    optimizer = optimizer or OPTIMIZERS[number % len(OPTIMIZERS)](model.parameters())
    stage.names[f"model_{number}"], stage.names[f"optimizer_{number}"] = model, optimizer
    for step in range(stage.steps):
        x = stage.tensor(generator, 8, WIDTH)

        def closure(x: torch.Tensor = x, step: int = step) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss = loss_of(model, x, step)
            loss.backward()
            return loss.detach()

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            stage.names[f"loss_{number}"] = closure()
            optimizer.step()
        if step % 16 == 0:
            with torch.no_grad():
                model(x)
    return [p.detach() for p in model.parameters()]


def in_threads(stage: Stage, work: Callable[..., Any], *shared: Any) -> list[Any]:
    """Return each thread's result; raise what a thread raised."""
    with ThreadPoolExecutor(stage.threads) as pool:
        return [
            one.result()
            for one in [pool.submit(work, stage, n, *shared) for n in range(stage.threads)]
        ]


# --- scenes: each returns what an untraced run must return, too, or None if chance decides


def every_optimizer(stage: Stage) -> Any:
    """Threads train models of their own under one trace, the main thread too."""
    with stage.trace():
        values = in_threads(stage, train)
        return [*values, train(stage._replace(steps=stage.steps // 4), stage.threads)]


def begun_before(stage: Stage) -> Any:
    """Daemon threads that train before the first trace begins, through several, after the last."""
    values: list[Any] = [None] * stage.threads
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            values[number] = train(stage, number)
        except BaseException as err:  # noqa: BLE001 - raised below
            failed.append(err)

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(stage.threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and len(stage.traces) < stage.steps / 10:
        with stage.trace():
            time.sleep(0.02)
            stage.names["kept"] = stage.tensor(stage.generator(99), 64, 64).requires_grad_()
            stage.names["kept"].sum().backward()
        if not stage.traced:
            break
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]
    return values


def pool_reused(stage: Stage) -> Any:
    """A pool's threads train in one trace after the other, and between them."""
    short = stage._replace(steps=max(1, stage.steps // 4))
    values = []
    with ThreadPoolExecutor(stage.threads) as pool:

        def all_train() -> None:
            jobs = [pool.submit(train, short, n) for n in range(stage.threads)]
            values.extend(job.result() for job in jobs)

        for _ in range(2):
            with stage.trace():
                all_train()
        across = pool.submit(train, short, 7)
        with stage.trace():
            all_train()
        values.append(across.result())
        with stage.trace():
            values.append(train(short, 8))
    return values


def hogwild(stage: Stage) -> None:
    """Train the same weights in threads without a lock.

    Where they share gradients, too, nobody replaces one: `p.grad = None` beside another thread's
    backward ends a process without any help of ours.
    """
    weights = stage.model(stage.generator())
    for parameter in weights.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def work(stage: Stage, number: int) -> None:
        generator = stage.generator(number)
        model = weights
        if number % 2:
            model = stage.model(generator)
            for own, shared in zip(model.parameters(), weights.parameters(), strict=True):
                own.data = shared.data
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        stage.names[f"model_{number}"], stage.names[f"optimizer_{number}"] = model, optimizer
        for _ in range(stage.steps):
            x = stage.tensor(generator, 8, WIDTH)
            optimizer.zero_grad(set_to_none=bool(number % 2))
            with contextlib.suppress(RuntimeError):  # a weight was changed since: their own race
                model(x).square().mean().backward()
            optimizer.step()

    with stage.trace():
        in_threads(stage, work)


def in_place(stage: Stage) -> Any:
    """Threads change in place what the notebook names, with graphs on it."""

    def work(stage: Stage, number: int) -> torch.Tensor:
        generator = stage.generator(number)
        leaf = stage.tensor(generator, WIDTH, WIDTH).requires_grad_()
        stage.names[f"leaf_{number}"] = leaf
        for step in range(stage.steps):
            x = leaf * 2
            stage.names[f"x_{number}"] = stage.names["x"] = x
            view = x[1:]
            view[0].mul_(3)
            x.add_(1).mul_(0.5).tanh_()
            stage.names["view"] = [view, {"deep": view.T}]
            x.sum().backward(retain_graph=step % 3 == 0)
            with torch.no_grad():
                leaf.sub_(leaf.grad, alpha=0.01)
            if step % 2:
                leaf.grad = None
            else:
                leaf.grad.zero_()
        return leaf.detach()

    with stage.trace():
        return in_threads(stage, work)


def _beside(stage: Stage, look: Callable[[], object]) -> Any:
    """Train in threads while another runs a function repeatedly."""
    over = threading.Event()

    def looks() -> None:
        while not over.wait(0.01):
            look()

    with stage.trace():
        looker = threading.Thread(target=looks)
        looker.start()
        try:
            return in_threads(stage, train)
        finally:
            over.set()
            looker.join()


def looked_at(stage: Stage) -> Any:
    """Walk the heap in one thread while others train."""
    return _beside(stage, lambda: stage.traced and walk(stage.names, budget_s=0.05))


def asked(stage: Stage) -> Any:
    """Read the recording in one thread while others train."""

    def ask() -> None:
        recorder = running_recorder()
        if recorder is not None:
            recorder.so_far()

    return _beside(stage, ask)


class Parallel(nn.Module):
    """Call replicas in threads inside one forward, as DataParallel does."""

    def __init__(self, replicas: Sequence[nn.Module]) -> None:
        super().__init__()
        self.replicas = nn.ModuleList(replicas)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Split a batch over the replicas."""
        outputs: list[Any] = [None] * len(self.replicas)

        def call(index: int, part: torch.Tensor) -> None:
            outputs[index] = self.replicas[index](part)

        calls = [
            threading.Thread(target=call, args=(i, part))
            for i, part in enumerate(x.chunk(len(self.replicas)))
        ]
        for one in calls:
            one.start()
        for one in calls:
            one.join()
        return torch.cat(outputs)


def parallel_forward(stage: Stage) -> Any:
    """A forward whose parts run in threads; a second such loop beside it."""

    def work(stage: Stage, number: int) -> list[torch.Tensor]:
        generator = stage.generator(number)
        model = Parallel([stage.model(generator) for _ in range(3)])
        return train(stage._replace(steps=stage.steps // 4), number, model)

    with stage.trace():
        values = [work(stage, 0)]
    with stage.trace():
        values += in_threads(stage._replace(threads=2), work)
    return values


SCENES: dict[str, Callable[[Stage], Any]] = {
    one.__name__: one
    for one in (
        every_optimizer,
        begun_before,
        pool_reused,
        hogwild,
        in_place,
        looked_at,
        asked,
        parallel_forward,
    )
}


def play(name: str, device: str, seed: int, *, threads: int, steps: int) -> list[str]:
    """Play a scene with traces and without; return the faults."""
    scene, wrong = SCENES[name], []
    with virtual.activated("T4") if device == "cuda" else contextlib.nullcontext():
        if device == "cuda":
            torch.ones(1, device="cuda")
        before = state()
        found = []
        for traced in (True, False):
            stage = Stage(device, threads, steps, seed, {}, traced, [])
            found.append(scene(stage))
            wrong += [sentence for one in stage.traces for sentence in _faults(one, device)]
            if traced and not stage.traces:
                wrong.append("no trace has ended")
            del stage
        wrong += state_differences(before)
        if device == "cpu" and not _equal(*found):  # a virtual card's tensors have no values
            wrong.append("the values differ from those without a trace")
    return wrong


def _faults(traced: Trace, device: str) -> Iterator[str]:
    if traced.session is None:
        yield "a trace has no session"
        return
    yield from (note for note in traced.session.notes if "nbmem lost" in note)
    try:
        traced.report()
    except NbmemError as err:
        if device == "cuda":
            yield f"a trace has no report: {err}"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one is other


# --- processes


class Outcome(NamedTuple):
    """Outcome of a process."""

    scenes: str
    device: str
    seed: int
    status: int
    output: str


def in_a_process(
    scenes: Sequence[str], device: str, seed: int, *, threads: int = THREADS, steps: int = STEPS
) -> Outcome:
    """Play scenes one after the other in a process of their own."""
    command = [
        *(sys.executable, "-X", "faulthandler", "-m", "tests.host_safety.threads", "--here"),
        *("--only", *scenes, "--device", device, "--seed", str(seed)),
        *("--threads", str(threads), "--steps", str(steps)),
    ]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=Path(__file__).parents[2],
        )
    except subprocess.TimeoutExpired as err:
        output = (err.stderr or b"").decode() if isinstance(err.stderr, bytes) else err.stderr or ""
        return Outcome(" ".join(scenes), device, seed, 1, f"no end after {LIMIT_S} s\n{output}")
    output = ended.stdout + ended.stderr
    return Outcome(" ".join(scenes), device, seed, ended.returncode, output)


def main() -> int:
    """Print how each process ended; 0 if all ended well."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.host_safety.threads",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often, each with its seed")
    parser.add_argument("--only", nargs="*", choices=SCENES, default=list(SCENES))
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cuda is the virtual card")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    devices = [options.device] if options.device else ["cpu", "cuda"]
    size = {"threads": options.threads, "steps": options.steps}
    if options.here:
        torch.set_num_threads(1)
        faulthandler.dump_traceback_later(LIMIT_S - 10)
        wrong = [
            f"{name} on {device}, seed {options.seed}: {sentence}"
            for name in options.only
            for device in devices
            for sentence in play(name, device, options.seed, **size)
        ]
        print(*wrong, sep="\n")
        return min(1, len(wrong))
    bad = 0
    for seed in range(options.seed, options.seed + options.rounds):
        for device in devices:
            for name in options.only:
                outcome = in_a_process([name], device, seed, **size)
                bad += outcome.status != 0
                how = "passed" if outcome.status == 0 else f"LOST, status {outcome.status}"
                print(f"{seed:>4}  {device:<5}{name:<20}{how}", flush=True)
                if outcome.status:
                    print(outcome.output[-3000:], flush=True)
    return min(1, bad)


if __name__ == "__main__":
    sys.exit(main())
