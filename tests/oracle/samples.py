"""Calls from torch's own databases, by operator and case.

Samples are made on the CPU and moved, so that what their values decide is known on both sides.
"""

from __future__ import annotations

import random
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

SAMPLES = 4
"""Of each operator, evenly from the list of its samples."""


class OperatorCases(NamedTuple):
    """Cases of one operator in one dtype.

    Attributes:
        name: As torch's database has it.
        cases: By what is done, a function that returns what does it; that one is listened to.
    """

    name: str
    cases: Callable[[], Iterator[tuple[str, Callable[[], Callable[[], Any] | None]]]]


def seeded(torch: Any) -> None:
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)


def sample_evenly(samples: list[Any]) -> Iterator[tuple[int, Any]]:
    """Yield a few samples with their indices, evenly from the list."""
    return enumerate(samples[:: max(1, -(-len(samples) // SAMPLES))])


def on_card(torch: Any, value: Any) -> Any:
    """Copy a sample to the card with its strides and views."""
    if value == "cpu" if isinstance(value, str) else isinstance(value, torch.device):
        return "cuda"
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided:
        return value.detach().cuda().requires_grad_(value.requires_grad)
    whole = value.detach().resolve_conj().resolve_neg()
    count = whole.untyped_storage().nbytes() // whole.element_size()
    flat = whole.as_strided((count,), (1,), 0).cuda()
    strided = flat.as_strided(whole.size(), whole.stride(), whole.storage_offset())
    return strided.requires_grad_(value.requires_grad)


def differentiable(torch: Any, results: Any) -> list[Any]:
    leaves = torch.utils._pytree.tree_leaves(results)
    return [y for y in leaves if isinstance(y, torch.Tensor) and y.requires_grad]


def gradients(torch: Any, results: list[Any], *, dense: bool) -> list[Any]:
    """Return gradients, dense or expanded from a number."""
    if dense:
        return [torch.ones_like(y) for y in results]
    return [torch.ones((), dtype=y.dtype, device=y.device).expand_as(y) for y in results]


def calls(torch: Any, function: Any, samples: list[Any], *, trained: bool) -> Iterator[Any]:
    """Yield a function's forward and backward for each sample."""

    def moved(sample: Any) -> Callable[[], Any]:
        held = (sample.input, sample.args, sample.kwargs)
        first, rest, named = torch.utils._pytree.tree_map(lambda v: on_card(torch, v), held)
        if type(sample) is Trainee:
            first = first()
        return lambda: function(first, *rest, **named)

    def backward(sample: Any, *, dense: bool) -> Callable[[], Any] | None:
        results = differentiable(torch, moved(sample)())
        if not results:
            return None
        incoming = gradients(torch, results, dense=dense)
        return lambda: torch.autograd.backward(results, incoming)

    for number, sample in sample_evenly(samples):
        yield f"{number} forward", lambda sample=sample: moved(sample)
        if trained:
            yield f"{number} backward, dense", lambda sample=sample: backward(sample, dense=True)
            yield (
                f"{number} backward, expanded",
                lambda sample=sample: backward(sample, dense=False),
            )


def operators(torch: Any, dtype: Any) -> Iterator[OperatorCases]:
    """Yield the operators of torch's op_db."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if dtype not in op.dtypesIfCUDA:
            continue

        def cases(op: Any = op) -> Iterator[Any]:
            trained = bool(op.supports_autograd and dtype in op.backward_dtypesIfCUDA)
            trained = trained and dtype.is_floating_point
            seeded(torch)
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=trained))
            return calls(torch, op.op, samples, trained=trained)

        yield OperatorCases(op.formatted_name, cases)


def lists(torch: Any, dtype: Any) -> Iterator[OperatorCases]:
    """Operators on lists of tensors (torch._foreach_*), in place and not."""
    from torch.testing._internal import common_methods_invocations as known

    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    for op in (op for kind in kinds for op in getattr(known, f"foreach_{kind}_op_db")):
        if dtype not in op.dtypesIfCUDA:
            continue
        for function in filter(None, (op.method_variant, op.inplace_variant)):

            def cases(op: Any = op, function: Any = function) -> Iterator[Any]:
                seeded(torch)
                samples = list(op.sample_inputs("cpu", dtype, noncontiguous=False))
                return calls(torch, function, samples, trained=False)

            yield OperatorCases(function.__name__, cases)


def optimizers(torch: Any, dtype: Any) -> Iterator[OperatorCases]:
    """Yield two steps of each optimizer in each implementation."""
    from torch.testing._internal.common_optimizers import optim_db

    if not dtype.is_floating_point:
        return
    for known in optim_db:
        if known.step_requires_closure or known.only_supports_sparse_grads:
            continue
        for flag in ({"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}):
            ((name, on),) = flag.items()
            supported = (
                known.has_capturable_arg
                if name == "capturable"
                else (not on or name in known.supported_impls)
            )
            if not supported:
                continue

            def cases(known: Any = known, flag: Any = flag) -> Iterator[Any]:
                for number, given in sample_evenly(known.optim_inputs_func(device="cuda")):
                    yield from steps(torch, known, {**given.kwargs, **flag}, dtype, number)

            yield OperatorCases(f"{known.optim_cls.__name__} {name}={on}", cases)


def steps(torch: Any, known: Any, options: Any, dtype: Any, number: int) -> Iterator[Any]:
    """Yield an optimizer's steps over two matrices and a vector."""
    shapes = (
        ((30, 7), (5, 300)) if known.optim_cls.__name__ == "Muon" else ((30, 7), (5, 300), (9,))
    )

    def made(done: int) -> Callable[[], Any]:
        weights = [torch.ones(shape, dtype=dtype, device="cuda") for shape in shapes]
        optimizer = known.optim_cls([w.requires_grad_() for w in weights], **options)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        for _ in range(done):
            optimizer.step()
        return lambda: (optimizer.step(), optimizer)

    yield f"{number} first step", lambda: made(0)
    yield f"{number} second step", lambda: made(1)


def modules(torch: Any, dtype: Any) -> Iterator[OperatorCases]:
    """Yield torch.nn's modules in training, forward and backward."""
    from torch.testing._internal.common_modules import module_db

    if not dtype.is_floating_point:
        return
    for known in module_db:
        if dtype not in known.dtypes:
            continue

        def cases(known: Any = known) -> Iterator[Any]:
            seeded(torch)
            given = known.module_inputs_func(
                known, device="cpu", dtype=dtype, requires_grad=True, training=True
            )
            return calls(torch, run, [trainee(torch, known, g, dtype) for g in given], trained=True)

        yield OperatorCases(known.name, cases)


class Trainee(NamedTuple):
    """A module as a sample: its input is a function that makes it on the card."""

    input: Any
    args: Any
    kwargs: Any


def trainee(torch: Any, known: Any, given: Any, dtype: Any) -> Trainee:
    def made() -> Any:
        fixed = given.constructor_input
        return known.module_cls(*fixed.args, **fixed.kwargs).to("cuda", dtype)

    taken = given.forward_input
    return Trainee(made, taken.args, taken.kwargs)


def run(module: Any, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


DATABASES = (operators, lists, optimizers, modules)


def known_modules() -> None:
    """Stub the package that only torch's own tests import."""
    sys.modules.setdefault("expecttest", types.ModuleType("expecttest")).__dict__.setdefault(
        "TestCase", unittest.TestCase
    )


def database(torch: Any, dtype: Any) -> Iterator[OperatorCases]:
    """Yield all operators, lists, optimizers and modules."""
    known_modules()
    for listed in DATABASES:
        yield from listed(torch, dtype)
