"""Kernels over every element that take their results, or little else, in an order of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operators import gradients
from nbmem.virtual.operators.operator import Operator, out, temporary
from nbmem.virtual.tensors.bounds import kept, narrowed, united
from nbmem.virtual.tensors.host.unwritten import HostRule
from nbmem.virtual.tensors.shapes import Results, infer, like, spec_of
from nbmem.virtual.tensors.value_rules import ValueRule, always, compared, flipped, passed_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operators.operator import Launch, Step
    from nbmem.virtual.tensors.calls import Call

aten = torch.ops.aten


def dropout(launch: Launch) -> Iterator[Step]:
    """The mask before the result."""
    for number in reversed(range(len(launch.outs))):
        yield out(number)


def roll(launch: Launch) -> Iterator[Step]:
    """One dimension after the other: what the first one makes stays until the last is done."""
    for number in range(1, len(launch["dims"])):
        yield temporary(f"rolled {number}", launch.outs[0].nbytes)
    yield out()


def shape_log_sigmoid(call: Call) -> Results:
    """The buffer beside the result is the CPU's; CUDA leaves it empty.

    aten/src/ATen/native/cuda/Activation.cpp: log_sigmoid_forward_cuda
    """
    results = infer(call)
    result, buffer = results.shape
    none = spec_of((0,), buffer.dtype, buffer.number)
    fresh = tuple(none if spec.number == none.number else spec for spec in results.fresh)
    return Results((result, none), fresh)


CHUNK = 65_536
"""Elements of one chunk of a list of tensors (kChunkSize)."""


def norms(launch: Launch) -> Iterator[Step]:
    """One number for each chunk, as many for every tensor as the largest has; then the results."""
    tensors = launch["self"]
    most = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    item = 8 if launch.outs[0].dtype is torch.float64 else 4
    yield temporary("norms of chunks", len(tensors) * most * item)
    for number in range(len(launch.outs)):
        yield out(number)


_CROSS_ENTROPY = ("BinaryCrossEntropyWithLogitsBackward0",)
_EVENLY = ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")
OPERATORS = (
    Operator(
        ("native_dropout",),
        memory=dropout,
        source="aten/src/ATen/native/cuda/Dropout.cu: dropout_cuda",
        shown_by="gpt2_b4s512_adamw, forward",
    ),
    Operator(
        ("roll",),
        memory=roll,
        source="aten/src/ATen/native/TensorTransformations.h: roll_common",
        shown_by="swin_t_b32_adamw, forward: shifted windows",
    ),
    Operator(("log_sigmoid_forward",), shape=shape_log_sigmoid),
    Operator(
        ("_foreach_norm.Scalar",),
        memory=norms,
        source="aten/src/ATen/native/cuda/ForeachReduceOp.cu: foreach_tensor_norm_cuda",
        shown_by="none of the H100's runs clips its gradients",
    ),
    Operator(("add.Tensor",), autograd=gradients.add, values=ValueRule(most=united)),
    Operator(
        ("sub.Tensor",),
        autograd=gradients.overwrites(aten.sub_.Tensor, _CROSS_ENTROPY),
    ),
    Operator(
        ("mul.Tensor",),
        autograd=gradients.overwrites(aten.mul_.Tensor, _CROSS_ENTROPY),
        values=ValueRule(health=passed_on, absorbs=False, most=narrowed),
    ),
    Operator(
        ("logical_and",),
        autograd=gradients.overwrites(aten.logical_and_.default, _EVENLY),
        values=ValueRule(health=passed_on, absorbs=False, most=narrowed),
    ),
    Operator(
        ("bitwise_and.Tensor",),
        values=ValueRule(health=passed_on, absorbs=False, most=narrowed),
    ),
    Operator(
        ("logical_or", "bitwise_or.Tensor"),
        values=ValueRule(health=passed_on, absorbs=True, most=united),
    ),
    Operator(("logical_or_", "bitwise_or_.Tensor", "cat"), values=ValueRule(most=united)),
    Operator(("logical_not", "bitwise_not"), values=ValueRule(health=flipped)),
    Operator(("abs", "view"), values=ValueRule(health=passed_on)),
    Operator(("isnan", "isinf"), values=ValueRule(health=always(False))),
    Operator(("isclose",), values=ValueRule(health=always(True))),
    Operator(("ne.Scalar", "gt.Scalar"), values=ValueRule(health=compared, most=kept)),
    Operator(
        (
            *("eq.Scalar", "ge.Scalar", "lt.Scalar", "le.Scalar", "eq.Tensor", "ne.Tensor"),
            *("gt.Tensor", "ge.Tensor", "lt.Tensor", "le.Tensor"),
        ),
        values=ValueRule(health=compared),
    ),
    Operator(
        ("fill_.Scalar", "zero_"),
        values=ValueRule(overwrites=True),
        host=HostRule(overwrites=True),
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
