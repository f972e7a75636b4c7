"""Convolutions by cuDNN: copies, results and workspaces.

The size of a workspace is computed in workspace.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.hardware.cudnn.problem import FOR_INPUT, FOR_WEIGHT, FORWARD, Kernels, Problem
from nbmem.virtual.operator_model.operator import DNN, Launch, Step, convolve, drop, out, temporary
from nbmem.virtual.operators.convolution import without_cudnn, workspace
from nbmem.virtual.operators.convolution.layout import (
    format_of_call,
    kernel_gradient,
    planar,
    strides,
)
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.tensors.global_switches import convolves_in_tf32, is_deterministic

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.cudnn.client import CudnnClient
    from nbmem.virtual.tensors.shapes import TensorSpec


def forward(launch: Launch) -> Iterator[Step]:
    """Yield the input's copy, the result, the weight's copy, the workspace.

    Only a tensor in the wrong format is copied.
    """
    if without_cudnn.cudnn_refuses(launch.call):
        yield from without_cudnn.forward(launch)
        return
    source, weight = launch["input"], launch["weight"]
    layout, native = format_of_call(launch.call)
    yield from _copy("input", source, layout)
    yield out()
    yield from _copy("weight", weight, layout)
    if native:
        return
    result = _as_tensor(launch.outs[0])
    kind = FOR_INPUT if launch["transposed"] else FORWARD
    yield from _run(kind, launch, source, weight, result)


def backward(launch: Launch) -> Iterator[Step]:
    """Yield the gradients of input, weight and bias, kernel by kernel."""
    if without_cudnn.cudnn_refuses(launch.call):
        yield from without_cudnn.backward(launch)
        return
    gradient, source, weight = launch["grad_output"], launch["input"], launch["weight"]
    layout, native = format_of_call(launch.call)
    if native:
        yield from _depthwise_backward(launch)
        return
    mask = launch["output_mask"]
    number = 0
    if mask[1]:
        yield from _copy("input", source, layout)
    given, is_copy = kernel_gradient(launch.call)
    if is_copy:
        yield temporary("gradient", given.numel() * given.element_size())
    if mask[0]:
        yield out(number)
        number += 1
        yield from _copy("weight", weight, layout)
        yield from _copy("gradient for input", given, layout)
        kind = FORWARD if launch["transposed"] else FOR_INPUT
        yield from _run(kind, launch, source, weight, gradient)
        yield drop("gradient for input")
        yield drop("weight")
    if mask[1]:
        yield from _copy("gradient for weight", given, layout)
        yield out(number)
        number += 1
        yield from _run(FOR_WEIGHT, launch, source, weight, gradient)
    for name in ("gradient for weight", "gradient", "input"):
        yield drop(name)
    if mask[2]:
        yield out(number)
        yield from _bias(gradient, launch)


def _depthwise_backward(launch: Launch) -> Iterator[Step]:
    """Yield the gradients by torch's own depthwise kernels.

    In two dimensions the weight's gradient comes before the input's.

    cuda/DepthwiseConv2d.cu: conv_depthwise2d_backward_cuda_out
    """
    if launch["input"].dim() == 5:
        yield from _depthwise3d_backward(launch)
        return
    mask = launch["output_mask"]
    contiguous = torch.contiguous_format
    # A sequence is copied before it gets a fourth dimension, and to the end.
    is_sequence = launch["input"].dim() == 3
    if is_sequence:
        yield from _copy("sequence", launch["input"], contiguous)
    yield from _copy("gradient", launch["grad_output"], contiguous)
    if mask[1]:
        if not is_sequence:
            yield from _copy("input", launch["input"], contiguous)
        yield out(int(mask[0]))
        yield drop("input")
    if mask[0]:
        yield from _copy("weight", launch["weight"], contiguous)
        yield out(0)
        yield drop("weight")
    yield drop("gradient")
    if mask[2]:
        yield out(int(mask[0]) + int(mask[1]))
        yield from _bias(launch["grad_output"], launch)


def _depthwise3d_backward(launch: Launch) -> Iterator[Step]:
    """Yield the gradients in three dimensions: the results first.

    The gradient's copy is live to the end.

    cuda/DepthwiseConv3d.cu: conv_depthwise3d_backward_cuda
    """
    mask = launch["output_mask"]
    for number in range(int(mask[0]) + int(mask[1])):
        yield out(number)
    yield from _copy("gradient", launch["grad_output"], torch.contiguous_format)
    for name, wanted in (("weight", mask[0]), ("input", mask[1])):
        if wanted:
            yield from _copy(name, launch[name], torch.contiguous_format)
            yield drop(name)
    if mask[2]:
        yield out(int(mask[0]) + int(mask[1]))
        yield from _bias(launch["grad_output"], launch)
    yield drop("gradient")


def _bias(gradient: torch.Tensor, launch: Launch) -> Iterator[Step]:
    dims = [d for d in range(gradient.dim()) if d != 1]
    shape = staging.geometry(gradient, dims)
    size, semaphores = staging.staging(
        shape, staging.accumulator_bytes(gradient.dtype), launch.card
    )
    if size:
        yield temporary("staging", size)
        yield temporary("semaphores", semaphores)


def _run(
    kind: str, launch: Launch, source: torch.Tensor, weight: torch.Tensor, result: torch.Tensor
) -> Iterator[Step]:
    """Yield one kernel with its workspace."""
    # The input of a transposed convolution is what an ordinary one has as its result.
    x, y = (result, source) if launch["transposed"] else (source, result)
    if not x.numel() or not y.numel():
        yield DNN
        return
    layout, _ = format_of_call(launch.call)
    problem = Problem(
        kind=kind,
        dtype=str(source.dtype).removeprefix("torch."),
        source=_geometry(x, layout),
        weight=_geometry(weight, layout),
        result=_geometry(y, layout),
        padding=_spatial(launch["padding"], x, 0),
        stride=_spatial(launch["stride"], x, 1),
        dilation=_spatial(launch["dilation"], x, 1),
        tf32=convolves_in_tf32(),
        deterministic=is_deterministic(),
    )
    answer = launch.dnn.first_kernel(problem) if launch.dnn is not None else None
    last = layout is not torch.contiguous_format
    size = workspace.nbytes(problem, answer, launch.card, last=last)
    doubtful = answer is None and workspace.may_transform(problem)
    every = partial(_every, launch.dnn, problem, launch.card)
    yield convolve(Kernels(problem, size, doubtful, every))


def _every(dnn: CudnnClient | None, problem: Problem, card: Card) -> tuple[int, ...]:
    """Return the workspaces of all kernels that can run the problem."""
    return workspace.every(problem, () if dnn is None else dnn.all_kernels(problem), card)


def _copy(name: str, tensor: torch.Tensor, layout: torch.memory_format) -> Iterator[Step]:
    """Yield a copy if the tensor does not have the kernel's format."""
    if not planar(tensor).is_contiguous(memory_format=layout):
        yield temporary(name, tensor.numel() * tensor.element_size())


def _geometry(
    tensor: torch.Tensor, layout: torch.memory_format
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return size and strides in that format."""
    size = tuple(planar(tensor).size())
    return size, strides(size, layout)


def _spatial(values: Any, source: torch.Tensor, unit: int) -> tuple[int, ...]:
    """Return one number for each spatial dimension.

    `unit` is the number of the dimension that _geometry adds.
    """
    rank = source.dim() - 2
    every = tuple(int(v) for v in values) * (rank if len(values) == 1 else 1)
    return (unit, *every) if rank == 1 else every


def _as_tensor(spec: TensorSpec) -> torch.Tensor:
    return torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device="meta")
