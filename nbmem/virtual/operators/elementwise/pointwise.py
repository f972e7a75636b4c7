"""Elementwise kernels that allocate in an order of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model import autograd_differences
from nbmem.virtual.operator_model.operator import (
    HALVES,
    Operator,
    contiguous,
    drop,
    out,
    outs,
    temporary,
)
from nbmem.virtual.tensors.host.lazy_tensors import HostRule
from nbmem.virtual.tensors.shapes import like
from nbmem.virtual.tensors.value_bounds import bound_of_joined, smallest_count, total_count
from nbmem.virtual.tensors.value_rules import ValueRule, same_health

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def dropout(launch: Launch) -> Iterator[Step]:
    """Plan the results in reverse: the mask before the output."""
    for number in reversed(range(len(launch.outs))):
        yield out(number)


_NO_BOOLS = (
    "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to "
    "invert a mask, use the `~` or `logical_not()` operator instead."
)
_NO_TWO_BOOLS = (
    "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
    "`logical_xor()` operator instead."
)


def _check_subtraction(call: OperatorCall) -> None:
    """Refuse bools in `_foreach_sub`, as sub_check does.

    Bool tensors and bool numbers are refused.
    """
    left, right = call.args[:2]
    others = right if isinstance(right, (list, tuple)) else [right] * len(left)
    for one_of, other in zip(left, others, strict=False):
        of_tensor = isinstance(other, torch.Tensor) and other.dtype is torch.bool
        bools = [one_of.dtype is torch.bool, of_tensor or type(other) is bool]
        if any(bools):
            raise RuntimeError(_NO_TWO_BOOLS if all(bools) else _NO_BOOLS)


CHUNK = 65_536
"""Elements of one chunk of a list of tensors (kChunkSize)."""


def norms(launch: Launch) -> Iterator[Step]:
    """Plan `_foreach_norm`: partial norms of all chunks, then the results.

    Each tensor gets as many partial norms as the largest tensor has chunks.
    """
    tensors = launch["self"]
    alike = len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1
    if not alike or launch["ord"] not in (0, 1, 2, math.inf):
        yield from _one_by_one(launch)
        return
    most = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    item = 8 if launch.outs[0].dtype is torch.float64 else 4
    yield temporary("norms of chunks", len(tensors) * most * item)
    yield from outs(launch)
    for number, tensor in enumerate(tensors):
        if not tensor.numel():
            yield temporary(f"zero in place of {number}", launch.outs[number].nbytes)


def _one_by_one(launch: Launch) -> Iterator[Step]:
    """Plan each norm by itself; float64 norms of other types need a copy."""
    for number, (tensor, spec) in enumerate(zip(launch["self"], launch.outs, strict=True)):
        yield out(number)
        if spec.dtype is torch.float64 and tensor.dtype is not torch.float64:
            yield temporary("converted", tensor.numel() * spec.dtype.itemsize)
            yield drop("converted")


def largest(launch: Launch) -> Iterator[Step]:
    """Plan `_foreach_max`: results and maxima of all chunks.

    The order of the two depends on torch's release.
    """
    tensors = launch["self"]
    most = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    chunks = temporary("of chunks", len(tensors) * most * tensors[0].element_size())
    results = list(outs(launch))
    yield from (*results, chunks) if launch.rules.chunks_after_results else (chunks, *results)


def roll_each(executor: Executor, call: OperatorCall) -> Any:
    """Run `roll` along several dimensions one by one (roll_common)."""
    tensor, shifts, dims = call.args[0], call.argument("shifts"), call.argument("dims")
    if len(dims) < 2 or len(dims) != len(shifts):
        return NotImplemented
    with executor:
        first = aten.roll.default(tensor, shifts[:1], dims[:1])
        return aten.roll.default(first, shifts[1:], dims[1:])


def roll(launch: Launch) -> Iterator[Step]:
    """Plan a contiguous copy, then the result."""
    yield from contiguous(launch["self"])
    yield out()


def power(launch: Launch) -> Iterator[Step]:
    """Plan `pow` of a number: the result, then the base as a 0-d tensor.

    The base has the full width of its Python type. A base of one needs no tensor, as the result
    is filled.
    """
    base = launch["self"]
    yield from outs(launch)
    if base != 1:
        yield temporary("base", 1 if type(base) is bool else 16 if type(base) is complex else 8)


def clamped(launch: Launch) -> Iterator[Step]:
    """Plan `clamp`: an input of another type is converted first.

    Integers between float bounds are an example. The copy is live until the call ends.
    """
    tensor, dtype = launch["self"], launch.outs[0].dtype
    if tensor.dtype is not dtype:
        yield temporary("converted", tensor.numel() * dtype.itemsize)
    yield from outs(launch)


def multivariate_log_gamma(executor: Executor, call: OperatorCall) -> Any:
    """Run `mvlgamma`: the sum of log-gamma values at p points.

    aten/src/ATen/native/UnaryOps.cpp: mvlgamma
    """
    tensor, p = call.args
    dtype = tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()
    with executor:
        places = torch.arange(-p * 0.5 + 0.5, 0.5, 0.5, dtype=dtype, device=tensor.device).add(
            tensor.unsqueeze(-1)
        )
        return aten.lgamma_.default(places).sum(-1)


def times_power_of_two(executor: Executor, call: OperatorCall) -> Any:
    """Run `torch.ldexp`: a power of two, then the product.

    An integer exponent is left to the single kernel.

    aten/src/ATen/native/BinaryOps.cpp: ldexp
    """
    tensor, exponent = call.args
    if not exponent.is_floating_point():
        return NotImplemented
    with executor:
        if exponent.dtype not in HALVES:
            return aten.mul.Tensor(tensor, aten.pow.Scalar(2.0, exponent))
        base = torch.full((), 2.0, dtype=exponent.dtype, device=exponent.device)
        power = aten.pow.Tensor_Tensor(base, exponent)
        del base
        return aten.mul.Tensor(tensor, power)


_CROSS_ENTROPY = ("BinaryCrossEntropyWithLogitsBackward0",)
OPERATORS = (
    Operator(
        ("native_dropout",),
        memory=dropout,
        source="aten/src/ATen/native/cuda/Dropout.cu: dropout_cuda",
        shown_by="gpt2_b4s512_adamw, forward",
    ),
    Operator(
        ("_foreach_norm.Scalar",),
        memory=norms,
        source="aten/src/ATen/native/cuda/ForeachReduceOp.cu: foreach_tensor_norm_cuda",
    ),
    Operator(
        ("_foreach_max",),
        memory=largest,
        source="aten/src/ATen/native/cuda/ForeachReduceOp.cu: foreach_tensor_max_cuda",
    ),
    Operator(
        ("roll",),
        run=roll_each,
        memory=roll,
        source="aten/src/ATen/native/cuda/TensorTransformations.cu: roll_cuda",
        shown_by="swin_t_b32_adamw, forward: shifted windows",
    ),
    Operator(
        ("pow.Scalar",),
        memory=power,
        source="aten/src/ATen/native/Pow.cpp: TORCH_IMPL_FUNC(pow_Scalar_out)",
    ),
    Operator(
        ("clamp", "clamp_min", "clamp_max"),
        memory=clamped,
        source="aten/src/ATen/native/TensorCompare.cpp: TORCH_META_FUNC(clamp)",
    ),
    Operator(
        ("_foreach_sub.*", "_foreach_sub_.*"),
        refuse=_check_subtraction,
        source="aten/src/ATen/native/cuda/ForeachBinaryOpList.cu: sub_check",
    ),
    Operator(("mvlgamma",), run=multivariate_log_gamma),
    Operator(("ldexp.Tensor",), run=times_power_of_two),
    Operator(("silu_backward",), is_kernel=True),
    Operator(
        ("add.Tensor",), autograd=autograd_differences.add, values=ValueRule(most=total_count)
    ),
    Operator(
        ("sub.Tensor",),
        autograd=autograd_differences.overwrite_in_place(aten.sub_.Tensor, _CROSS_ENTROPY),
    ),
    Operator(
        ("mul.Tensor",),
        autograd=autograd_differences.overwrite_in_place(
            aten.mul_.Tensor, (*_CROSS_ENTROPY, "BinaryCrossEntropyBackward0")
        ),
        values=ValueRule(health=same_health, absorbs=False, most=smallest_count),
    ),
    Operator(("cat", "stack"), values=ValueRule(most=total_count, below=bound_of_joined)),
    Operator(("abs", "view"), values=ValueRule(health=same_health)),
    Operator(
        ("fill_.Scalar", "zero_"), values=ValueRule(overwrites=True), host=HostRule(overwrites=True)
    ),
    Operator(("fill_.*", "zero_.*"), host=HostRule(overwrites=True)),
    Operator(
        ("_amp_foreach_non_finite_check_and_unscale_",),
        # A healthy run finds no infinity: the flag stays while the gradients are unknown.
        values=ValueRule(harmless=True),
    ),
    Operator(("glu_backward_jvp",), shape=like("grad_x")),
    Operator(("glu_jvp",), shape=like("glu")),
)
