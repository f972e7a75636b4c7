"""Measure kernels for CUDA's dispatch key beside the dispatch mode.

Three ways to reach the card's operators: the mode, as the package has it; a Python kernel for each
operator and no mode; and the mode with kernels in the passes of autograd's engine alone. The
results, and why the mode stays, are in nbmem/virtual/dispatch/README.md.

First the allocator's events of some programs, then microseconds of the process for each call and
step. Kernels run without the repairs of `operator_model`, which recognize a mode's calls.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import _C, autograd, nn
from torch.autograd import graph
from torch.utils import _python_dispatch as dispatch_modes

from nbmem import virtual
from nbmem.virtual.dispatch.card_mode import CardMode
from nbmem.virtual.patches import activation
from nbmem.virtual.patches.autograd import engine, thread_modes
from nbmem.virtual.patches.dispatcher import implement
from nbmem.virtual.patches.patcher import Patch
from tests.virtual.allocation_history import own_allocations

WAYS = ("mode", "kernels", "kernels in passes")
_NATIVE = ("aten::alias", "aten::detach")
"""Without a kernel in Python: `_make_subclass` needs what C++ makes of them."""
_ORIGINALS = {
    "CardMode": CardMode,
    "engine_patches": engine.engine_patches,
    "remove_mode": thread_modes.remove_mode,
    "thread_patches": thread_modes.thread_patches,
}


def card_operators() -> Iterator[Any]:
    """Yield aten's operators, but for those that C++ composes of others on every device."""
    for name in _C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        found = getattr(torch.ops.aten, packet, None) if name.startswith("aten::") else None
        operator = getattr(found, overload or "default", None)
        if operator is None or name in _NATIVE:
            continue
        implicit = _C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        if not implicit:
            yield operator


def makes_tensors(operator: Any) -> bool:
    """Return whether an operator has a device, and no tensor that decides it."""
    types = [str(argument.type) for argument in operator._schema.arguments]
    return "Optional[Device]" in types and not any("Tensor" in one for one in types)


class KernelMode(CardMode):
    """A card whose operators are registered kernels.

    The mode is not entered while a kernel runs, nor at all without `with_mode`.
    """

    with_mode = False

    def __init__(self, machine: Any, *, defer: bool = False) -> None:
        super().__init__(machine, defer=defer)
        self._library: Any = None
        self._thread = threading.local()

    def __enter__(self) -> Any:
        if self._library is None:
            self._register()
        entered = self.with_mode and not getattr(self._thread, "kernels", 0)
        self._entered().append(entered)
        return super().__enter__() if entered else self

    def __exit__(self, *exc: object) -> None:
        if self._entered().pop():
            super().__exit__(*exc)

    def unregister(self) -> None:
        """Restore torch's own kernels."""
        self._library._destroy()
        self._library = None

    def _entered(self) -> list[bool]:
        found: list[bool] = self._thread.__dict__.setdefault("entered", [])
        return found

    def _register(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        for operator in card_operators():
            kernel = self._kernel(operator)
            implement(self._library, operator, kernel, "CUDA")
            if makes_tensors(operator):  # C++ asks for the device that it sees.
                implement(self._library, operator, kernel, "Lazy")

    def _kernel(self, operator: Any) -> Callable[..., Any]:
        thread, run = self._thread, self._run

        def kernel(*args: Any, **kwargs: Any) -> Any:
            thread.kernels = getattr(thread, "kernels", 0) + 1
            try:
                return run(operator, args, kwargs)
            finally:
                thread.kernels -= 1

        return kernel


class PassKernelMode(KernelMode):
    """A card whose mode is off in the passes of autograd's engine."""

    with_mode = True


def passes_without_mode() -> list[Patch]:
    """Return the package's patches of the engine, with a mode that is off inside."""
    original = engine.engine_patches()
    run = original[0].value

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        above: list[Any] = []
        mode = activation.activation().mode
        modes = dispatch_modes._get_current_dispatch_mode_stack()
        if mode not in modes:
            return run(*args, **kwargs)
        while modes[-1 - len(above)] is not mode:
            above.append(dispatch_modes._pop_mode())
        dispatch_modes._pop_mode()
        try:
            _push(above)
            return run(*args, **kwargs)
        finally:
            for _ in above:
                dispatch_modes._pop_mode()
            _push([*above, mode])

    return [
        Patch(owner, "_engine_run_backward", _engine_run_backward) for owner in (graph, autograd)
    ]


def _push(modes: list[Any]) -> None:
    for mode in reversed(modes):
        dispatch_modes._push_mode(mode)


def unregister(mode: Any) -> None:
    """Remove a mode with its kernels."""
    thread_modes.remove_mode(mode)
    mode.unregister()


REPLACED: dict[str, dict[str, Any]] = {
    "mode": {},
    "kernels": {
        "CardMode": KernelMode,
        "thread_patches": lambda _mode: [],
        "remove_mode": unregister,
    },
    "kernels in passes": {
        "CardMode": PassKernelMode,
        "engine_patches": passes_without_mode,
        "remove_mode": unregister,
    },
}
"""What an activation is made of in each of WAYS, where it is not the package's own."""


def set_way(way: str) -> None:
    """Let the next activation reach operators in one of WAYS."""
    for name, value in {**_ORIGINALS, **REPLACED[way]}.items():
        setattr(activation, name, value)


def leaf(*size: int) -> torch.Tensor:
    return torch.ones(size, device="cuda", requires_grad=True)


def gradient_events(function: Callable[[torch.Tensor], torch.Tensor]) -> list[int]:
    """Return what the gradient of a function allocates and, negative, frees."""
    result = function(leaf(3, 5))
    incoming = torch.ones_like(result)
    return own_allocations(lambda: result.backward(incoming))


def written_view(x: torch.Tensor) -> torch.Tensor:
    view = (x * 1).view(15)
    view.mul_(2)
    return view


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu and sigmoid": lambda x: x.relu() + x.sigmoid(),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (5,)),
    "cumprod": lambda x: x.cumprod(0),
    "cumprod of a zero": lambda x: (x * torch.zeros(5, device="cuda")).cumprod(0),
    "prod": lambda x: x.prod(),
    "max": lambda x: x.max(),
    "gather": lambda x: x.gather(0, torch.zeros(2, 5, dtype=torch.int64, device="cuda")),
    "write to a view": written_view,
}


class Block(nn.Module):
    """A block of a ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolutions(x) + x)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (
        lambda: nn.Sequential(
            *(f() for _ in range(6) for f in (lambda: nn.Linear(64, 64), nn.ReLU))
        ),
        (32, 64),
    ),
    "ResNet": (lambda: nn.Sequential(*(Block(16) for _ in range(8))), (8, 16, 32, 32)),
    "transformer": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 4),
        (8, 32, 128),
    ),
}


def time_calls(call: Callable[[], Any], count: int) -> float:
    """Return microseconds of this process for each call."""
    call()
    begin = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begin) / count * 1e6


def times() -> Iterator[tuple[str, float]]:
    """Yield microseconds of single operators and of training steps."""
    x, learned, here = torch.ones(64, 64, device="cuda"), leaf(64, 64), torch.ones(4, 4)
    yield "relu", time_calls(lambda: torch.relu(x), 500)
    yield "relu, with a gradient", time_calls(lambda: torch.relu(learned), 500)
    yield "mm", time_calls(lambda: x @ x, 500)
    yield "transpose", time_calls(x.t, 500)
    yield "add on the CPU", time_calls(lambda: here + here, 2_000)
    for name, (build, size) in MODELS.items():
        model = build().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.ones(size, device="cuda")

        def step(model: Any = model, optimizer: Any = optimizer, batch: Any = batch) -> None:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        yield f"a step of the {name}", time_calls(step, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, program in PROGRAMS.items():
        events = []
        for way in WAYS:
            set_way(way)
            with virtual.activated("H100 80GB"):
                events.append(gradient_events(program))
        same = [way for way, found in zip(WAYS, events, strict=True) if found == events[0]]
        print(f"{name}: {events[0]}; the same events: {', '.join(same)}")
    measured: dict[str, dict[str, list[float]]] = {}
    for number in range(options.rounds):
        for way in (*WAYS[number % 3 :], *WAYS[: number % 3]):
            set_way(way)
            with virtual.activated("H100 80GB"):
                gc.collect()
                for name, microseconds in times():
                    measured.setdefault(name, {}).setdefault(way, []).append(microseconds)
    for name, of_ways in measured.items():
        shown = [f"{way} {statistics.median(of_ways[way]):,.1f} us" for way in WAYS]
        print(f"{name}: {', '.join(shown)}")


if __name__ == "__main__":
    main()
