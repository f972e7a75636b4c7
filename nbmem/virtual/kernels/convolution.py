"""Convolutions through cuDNN: copies in the other format, results, and the kernels' workspaces.

How large a workspace is says kernels/convolution_workspace.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.cudnn.problem import FOR_INPUT, FOR_WEIGHT, FORWARD, Problem
from nbmem.virtual.kernels import convolution_workspace as workspace
from nbmem.virtual.kernels import reduce
from nbmem.virtual.kernels.plan import DNN, Kernel, drop, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.kernels.plan import Launch, Step
    from nbmem.virtual.shapes import TensorSpec


def forward(launch: Launch) -> Iterator[Step]:
    """The input's copy if its format is the wrong one, the result, the weight's, the workspace."""
    source, weight = launch["input"], launch["weight"]
    layout = _format(source, weight)
    yield from _copy("input", source, layout)
    yield out()
    yield from _copy("weight", weight, layout)
    if _native_depthwise(source, weight, launch):
        return
    yield DNN
    result = _as_tensor(launch.outs[0])
    kind = FOR_INPUT if launch["transposed"] else FORWARD
    yield from _scratch(kind, launch, source, weight, result, "workspace")


def backward(launch: Launch) -> Iterator[Step]:
    """Gradients of input, weight and bias, one kernel after the other."""
    gradient, source, weight = launch["grad_output"], launch["input"], launch["weight"]
    layout = _format(source, weight)
    mask = launch["output_mask"]
    native = _native_depthwise(source, weight, launch)
    transposed = launch["transposed"]
    number = 0
    if mask[1]:
        yield from _copy("input", source, layout)
    yield from _copy("gradient", gradient, layout)
    if mask[0]:
        yield out(number)
        number += 1
        yield from _copy("weight", weight, layout)
        if not native:
            yield DNN
            kind = FORWARD if transposed else FOR_INPUT
            yield from _scratch(kind, launch, source, weight, gradient, "for input")
        yield drop("weight")
    if mask[1]:
        yield out(number)
        number += 1
        if not native:
            yield DNN
            yield from _scratch(FOR_WEIGHT, launch, source, weight, gradient, "for weight")
    yield drop("gradient")
    yield drop("input")
    if mask[2]:
        yield out(number)
        yield from _bias(gradient, launch)


def _bias(gradient: torch.Tensor, launch: Launch) -> Iterator[Step]:
    dims = [d for d in range(gradient.dim()) if d != 1]
    layout = reduce.geometry(gradient, dims)
    size, semaphores = reduce.staging(layout, reduce.accumulator(gradient.dtype), launch.card)
    if size:
        yield temporary("staging", size)
        yield temporary("semaphores", semaphores)


def _scratch(  # noqa: PLR0913 - a convolution has three tensors
    kind: str,
    launch: Launch,
    source: torch.Tensor,
    weight: torch.Tensor,
    result: torch.Tensor,
    name: str,
) -> Iterator[Step]:
    """The workspace of one kernel, which lives as long as its launch."""
    # The input of a transposed convolution is what an ordinary one has as its result.
    x, y = (result, source) if launch["transposed"] else (source, result)
    if not x.numel() or not y.numel():
        return
    layout = _format(source, weight)
    problem = Problem(
        kind=kind,
        dtype=str(source.dtype).removeprefix("torch."),
        source=_geometry(x, layout),
        weight=_geometry(weight, layout),
        result=_geometry(y, layout),
        padding=_spatial(launch["padding"], x, 0),
        stride=_spatial(launch["stride"], x, 1),
        dilation=_spatial(launch["dilation"], x, 1),
        tf32=torch.backends.cudnn.allow_tf32,
        deterministic=torch.backends.cudnn.deterministic
        or torch.are_deterministic_algorithms_enabled(),
    )
    answer = launch.dnn.ask(problem) if launch.dnn is not None else None
    size = workspace.nbytes(problem, answer, launch.card, last=layout is not None)
    if size:
        yield temporary(name, size)
        yield drop(name)


def _format(source: torch.Tensor, weight: torch.Tensor) -> torch.memory_format | None:
    """Channels-last if one of them is, None for contiguous (cudnn_conv_suggest_memory_format)."""
    for tensor in (source, weight):
        layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
        if (
            layout is not None
            and not tensor.is_contiguous()
            and tensor.is_contiguous(memory_format=layout)
        ):
            return layout
    return None


def _copy(name: str, tensor: torch.Tensor, layout: torch.memory_format | None) -> Iterator[Step]:
    """A copy where the tensor does not have the format that the kernel wants."""
    if not tensor.is_contiguous(memory_format=layout or torch.contiguous_format):
        yield temporary(name, tensor.numel() * tensor.element_size())


def _native_depthwise(source: torch.Tensor, weight: torch.Tensor, launch: Launch) -> bool:
    """torch's own kernel takes depthwise convolutions in the contiguous format, with no scratch.

    aten/src/ATen/native/Convolution.cpp: use_cudnn_depthwise
    """
    groups = int(launch["groups"])
    return groups > 1 and source.size(1) == groups and _format(source, weight) is None


def _geometry(
    tensor: torch.Tensor, layout: torch.memory_format | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and strides in that format; one-dimensional convolutions get a second dimension."""
    size = tuple(tensor.size())
    if len(size) == 3:
        size = (size[0], size[1], 1, size[2])
    meta = torch.empty(size, device="meta", memory_format=layout or torch.contiguous_format)
    return size, meta.stride()


def _spatial(values: Any, source: torch.Tensor, unit: int) -> tuple[int, ...]:
    """One number for each spatial dimension; `unit` for the one that _geometry adds."""
    rank = source.dim() - 2
    every = tuple(int(v) for v in values) * (rank if len(values) == 1 else 1)
    return (unit, *every) if rank == 1 else every


def _as_tensor(spec: TensorSpec) -> torch.Tensor:
    return torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device="meta")


SOURCE = "aten/src/ATen/native/cudnn/ConvShared.cpp and Conv_v8.cpp; Convolution.cpp"
KERNELS = (
    Kernel(
        ops=("convolution",), rule=forward, source=SOURCE, shown_by="resnet50_b32_sgdm, forward"
    ),
    Kernel(
        ops=("convolution_backward",),
        rule=backward,
        source=SOURCE,
        shown_by="resnet50_b32_sgdm, backward",
    ),
)
