"""Programs made of notebook-like pieces, run with and without a trace.

A program is a list of pieces, each with a number that chooses its details. What it does to the
outside is written down in order (values, exceptions, random numbers, calls of the user's own
hooks), and that is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import nbmem

SIZE = 3


class Run:
    """State of a running program.

    Attributes:
        names: The notebook's names.
        told: What it has shown to the outside, in order.
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = {
            "x": torch.arange(float(SIZE * SIZE)).reshape(SIZE, SIZE),
            "model": nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE)),
        }
        self.names["optimizer"] = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.told: list[Any] = []

    @property
    def x(self) -> torch.Tensor:
        """Return the tensor that the pieces work on."""
        return self.names["x"]

    @x.setter
    def x(self, value: torch.Tensor) -> None:
        self.names["x"] = value

    @property
    def model(self) -> nn.Module:
        """Return the model that the pieces train."""
        return self.names["model"]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of the model."""
        return self.names["optimizer"]

    def tell(self, *objects: Any) -> None:
        """Record a value that a user would see."""
        self.told += [obj.detach().clone() if isinstance(obj, torch.Tensor) else obj
                      for obj in objects]  # fmt: skip

    def loss(self, n: int = 0) -> torch.Tensor:
        """Run a forward."""
        return self.model(self.x + n).square().mean()


class Negative(torch.autograd.Function):
    """A function of the user's own."""

    told: Callable[..., None]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return -x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        Negative.told("backward of mine", x)
        return -gradient


# --- pieces


def allocate(run: Run, n: int) -> None:
    run.names[f"kept_{n}"] = torch.full((n + 1, SIZE), float(n))
    run.names["list"] = [run.names[f"kept_{n}"][0], {"deep": run.x}]


def draw(run: Run, n: int) -> None:
    run.tell(torch.rand(n + 1), random.random())


def view(run: Run, n: int) -> None:
    run.x = run.x.T if n % 2 else run.x.reshape(-1)[:SIZE].expand(SIZE, SIZE)


def in_place(run: Run, n: int) -> None:
    if run.x.requires_grad or run.x._is_view():
        run.x = run.x.detach().clone()
    run.x.mul_(0.5).add_(n)
    run.x[0] = n
    run.tell(run.x._version)


def in_place_in_a_graph(run: Run, n: int) -> None:
    leaf = torch.ones(SIZE, requires_grad=True)
    y = leaf * 2
    z = y.exp() if n % 2 else y.sum()
    run.names["y"] = y
    y.add_(1)
    z.sum().backward()  # raises where exp's result... or its argument was needed
    run.tell(leaf.grad)


def spoil_a_graph(run: Run, n: int) -> None:
    y = (torch.ones(SIZE, requires_grad=True) * (n + 1)).exp()
    y.mul_(2)
    y.sum().backward()


def backward(run: Run, n: int) -> None:
    loss = run.loss(n)
    loss.backward(retain_graph=bool(n % 2))
    if n % 2:
        loss.backward()
    run.tell(loss, *(p.grad for p in run.model.parameters()))


def backward_twice(run: Run, n: int) -> None:
    loss = run.loss(n)
    loss.backward()
    loss.backward()


def grad_of_grad(run: Run, n: int) -> None:
    x = run.x.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad(run.model(x).pow(2).sum(), x, create_graph=True)
    run.tell(*torch.autograd.grad(first.sum(), [x]))


def step(run: Run, n: int) -> None:
    run.optimizer.zero_grad(set_to_none=bool(n % 2))
    run.loss().backward()
    if n % 3 == 0:
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
    run.optimizer.step()
    run.tell(*run.model.parameters())


def step_by_closure(run: Run, n: int) -> None:
    optimizer = torch.optim.LBFGS(run.model.parameters(), lr=0.1, max_iter=n % 3 + 1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = run.loss()
        loss.backward()
        run.tell("closure")
        return loss

    run.tell(optimizer.step(closure))


def new_optimizer(run: Run, n: int) -> None:
    kinds = torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad
    run.names["optimizer"] = kinds[n % 3](run.model.parameters(), lr=0.01)


def new_model(run: Run, n: int) -> None:
    run.names["model"] = nn.Sequential(
        nn.Linear(SIZE, SIZE), nn.Dropout(0.5), nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE)
    )
    if n % 2:
        run.model.eval()


def threads(run: Run, n: int) -> None:
    results: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        weight = torch.randn(SIZE, SIZE, generator=generator).requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(n + 1):
            optimizer.zero_grad()
            (weight @ run.names["fixed"]).sum().backward()
            optimizer.step()
        results[number] = weight

    run.names["fixed"] = torch.ones(SIZE, SIZE)
    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    run.tell(results[0], results[1])


def raises(run: Run, n: int) -> None:
    run.tell("before")
    run.model(torch.ones(n + 1, SIZE + 1))


def raises_its_own(run: Run, n: int) -> None:
    try:
        try:
            raise KeyError(n)
        finally:
            run.tell("finally")
    except KeyError as err:
        raise LookupError("mine", n) from err


def nested(run: Run, n: int) -> None:
    with nbmem.trace(f"inner {n}", namespace=run.names), nbmem.phase("part"):
        step(run, n)
        if n % 3 == 0:
            raise ValueError("out of two traces")


def generators(run: Run, n: int) -> None:
    def batches() -> Iterator[torch.Tensor]:
        try:
            for i in range(3):
                yield run.x.detach() + i
        finally:
            run.tell("closed")

    for i, batch in enumerate(source := batches()):
        run.tell(run.model(batch))
        if i == n % 3:
            source.close()


def asynchronous(run: Run, n: int) -> None:
    async def work(number: int) -> None:
        for i in range(2):
            await asyncio.sleep(0)
            run.tell(f"task {number} {i}", run.loss(number))
        if number == n:
            raise ValueError("in a task")

    async def main() -> None:
        done = await asyncio.gather(*(work(i) for i in range(3)), return_exceptions=True)
        run.tell([type(one).__name__ for one in done])

    asyncio.run(main())


def own_function(run: Run, n: int) -> None:
    Negative.told = run.tell
    x = run.x.detach().clone().requires_grad_()
    (Negative.apply(x) * n).sum().backward()
    run.tell(x.grad)


def checkpointed(run: Run, n: int) -> None:
    x = run.x.detach().clone().requires_grad_()
    checkpoint(run.model, x, use_reentrant=bool(n % 2)).sum().backward()
    run.tell(x.grad)


def hooks(run: Run, n: int) -> None:
    def told(name: str) -> Callable[..., None]:
        return lambda *_: run.tell(name)

    handles = [
        run.model.register_forward_pre_hook(told("forward begins")),
        run.model.register_forward_hook(told("forward ends"), always_call=True),
        run.model.register_full_backward_hook(told("backward")),
        run.optimizer.register_step_pre_hook(told("step begins")),
        run.optimizer.register_step_post_hook(told("step ends")),
        nn.modules.module.register_module_forward_hook(told("any forward")),
        register_optimizer_step_pre_hook(told("any step")),
        next(run.model.parameters()).register_hook(told("gradient")),
        next(run.model.parameters()).register_post_accumulate_grad_hook(told("accumulated")),
    ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (run.tell("pack"), t)[1], lambda t: (run.tell("unpack"), t)[1]
        ):
            run.optimizer.zero_grad()
            run.loss(n).backward()
        run.optimizer.step()
    finally:
        for handle in handles:
            handle.remove()


def without_gradients(run: Run, n: int) -> None:
    with torch.inference_mode() if n % 2 else torch.no_grad():
        y = run.model(run.x)
    run.tell(y, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), y.is_inference())


def anomalies(run: Run, n: int) -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        run.loss(n).backward()
    run.tell(*(p.grad for p in run.model.parameters()))


def deaths(run: Run, n: int) -> None:
    kept = nn.Linear(SIZE, SIZE)
    y = kept(run.x.detach())
    weakref.finalize(kept, run.tell, "the model died")
    weakref.finalize(y, run.tell, "the output died")
    y.sum().backward()
    del y
    run.tell("and then")
    del kept
    run.tell(gc.isenabled())


def deep_copies(run: Run, n: int) -> None:
    import copy
    import pickle

    twin = copy.deepcopy(run.model) if n % 2 else pickle.loads(pickle.dumps(run.model))
    twin(run.x.detach()).sum().backward()
    run.tell(*(p.grad for p in twin.parameters()))


PIECES: dict[str, Callable[[Run, int], None]] = {
    one.__name__: one
    for one in (
        *(allocate, draw, view, in_place, in_place_in_a_graph, spoil_a_graph, backward),
        *(backward_twice, grad_of_grad, step, step_by_closure, new_optimizer, new_model, threads),
        *(raises, raises_its_own, nested, generators, asynchronous, own_function, checkpointed),
        *(hooks, without_gradients, anomalies, deaths, deep_copies),
    )
}


def run_program(program: list[tuple[str, int, bool]], *, traced: bool) -> list[Any]:
    """Run a program of pieces; return everything that it shows."""
    torch.manual_seed(1)
    random.seed(1)
    run = Run()
    gc.disable()  # or it would say when what is in a cycle dies
    try:
        with nbmem.trace(namespace=run.names) if traced else contextlib.nullcontext() as trace:
            for piece, number, catches in program:
                try:
                    PIECES[piece](run, number)
                except Exception as err:
                    run.tell(*_words(err))
                    if not catches:
                        raise
    except Exception as err:  # noqa: BLE001 - what leaves the traced block
        run.tell("left the block", *_words(err))
    finally:
        gc.enable()
    if traced:
        assert trace.session is not None
        lost = [note for note in trace.session.notes if "nbmem lost" in note]
        assert not lost, lost
    run.tell(*run.model.parameters(), run.x, torch.get_rng_state(), hash(random.getstate()))
    return run.told


def _words(err: BaseException) -> list[str]:
    cause, context = err.__cause__, err.__context__
    return [type(err).__name__, str(err), repr(cause), repr(context)]


def differences(one: list[Any], other: list[Any]) -> list[str]:
    """Describe the differences between two runs."""
    if len(one) != len(other):
        return [f"{len(one)} and {len(other)} things were told: {one} and {other}"]
    return [f"{i}: {a} and {b}" for i, (a, b) in enumerate(zip(one, other, strict=True))
            if not _same(a, b)]  # fmt: skip


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    return type(a) is type(b) and a == b
