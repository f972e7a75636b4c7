"""Normalisation: which kernel CUDA takes; those that want contiguous inputs copy others first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from nbmem.virtual.operators.operator import (
    DNN,
    Operator,
    contiguous,
    drop,
    out,
    outs,
    temporary,
)
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.operators.refusals import short
from nbmem.virtual.tensors.calls import facts_of, operator_of
from nbmem.virtual.tensors.shapes import like, several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbmem.virtual.operators.operator import Launch, Step
    from nbmem.virtual.tensors.calls import Call
    from nbmem.virtual.tensors.shapes import Results

aten = torch.ops.aten


def batch_norm(  # noqa: PLR0913 - the schema's
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,  # noqa: FBT001
    momentum: float,
    eps: float,
    cudnn_enabled: bool,  # noqa: FBT001
) -> torch.Tensor:
    """cuDNN's kernel where its conditions hold, else the native one.

    https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/Normalization.cpp
    (_select_batch_norm_backend)
    """
    rows = tensor.size(0) if tensor.dim() else 0
    both = running_mean is not None and running_var is not None
    neither = running_mean is None and running_var is None
    cudnn = (
        cudnn_enabled
        and tensor.numel() > 0
        and weight is not None
        and bias is not None
        and (both or (neither and training))
        and torch.bfloat16 not in (tensor.dtype, weight.dtype)
        and (tensor.dtype is not torch.float16 or weight.dtype is torch.float32)
        and tensor.dim() > 2
        and rows <= (880801 if training else 65535)
        and tensor.numel() < 2**31 - 1
    )
    if cudnn and torch.backends.cudnn.enabled:
        source = tensor.contiguous(memory_format=_suggested(tensor))
        return aten.cudnn_batch_norm.default(
            source, weight, bias, running_mean, running_var, training, momentum, eps
        )[0]
    return aten.native_batch_norm.default(
        tensor, weight, bias, running_mean, running_var, training, momentum, eps
    )[0]


def _suggested(tensor: torch.Tensor) -> torch.memory_format:
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


class _RMSNorm(torch.autograd.Function):
    """CUDA's kernel and its gradient; a build without CUDA has but the composite one."""

    @staticmethod
    def forward(
        tensor: torch.Tensor, shape: list[int], weight: torch.Tensor | None, eps: float | None
    ) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return aten._fused_rms_norm.default(tensor, shape, weight, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        tensor, ctx.shape, weight, _ = inputs
        ctx.save_for_backward(tensor, weight, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        tensor, weight, factors = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        found = aten._fused_rms_norm_backward.default(
            gradients[0], tensor, ctx.shape, factors, weight, wanted
        )
        return found[0], None, found[1], None


def rms_norm(
    tensor: torch.Tensor,
    shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """One kernel where its conditions hold, else the operators it consists of.

    https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/layer_norm.cpp
    (rms_norm_symint)
    """
    fused = (
        _suggested(tensor) is torch.contiguous_format
        and not tensor.is_complex()
        and (weight is None or weight.dtype is tensor.dtype)
        and not torch._C._are_functorch_transforms_active()  # They cannot derive _RMSNorm.
    )
    if fused:
        return _RMSNorm.apply(tensor, list(shape), weight, eps)[0]
    return aten.rms_norm.default.decompose(tensor, shape, weight, eps)


def _is_composite_here() -> bool:
    """Whether this release has a kernel on CUDA and its shapes, but not this build.

    Known limit: torch 2.9 has the kernel, but no shape rule for it.
    """
    kernel = operator_of("_fused_rms_norm")
    if kernel is None or facts_of(kernel).composite:
        return False
    return not kernel.has_kernel_for_dispatch_key(torch._C.DispatchKey.CUDA)


def _check_weight(call: Call) -> None:
    source, weight = call.args[0], call.argument("weight")
    if weight is not None and weight.dtype is not source.dtype:
        raise RuntimeError(f"expected scalar type {short(source)} but found {short(weight)}")


def _statistics(count: int) -> Callable[[Call], Results]:
    """Numbers per channel, in float32 for half types."""

    def rule(call: Call) -> Results:
        tensor = call.argument("input")
        half = tensor.dtype in (torch.float16, torch.bfloat16)
        dtype = torch.float32 if half else tensor.dtype
        return several(*[((tensor.size(1),), dtype)] * count)

    return rule


def on_input(launch: Launch) -> Iterator[Step]:
    """The input is made contiguous."""
    yield from contiguous(launch.call.args[0])
    yield from outs(launch)


MANY_ROWS = 64 << 10
"""Beyond so many rows a norm over few columns adds up its weights' gradients in two passes."""
TILE_COLUMNS, TILE_ROWS, MOST_BLOCKS = 32, 32, 32 << 10


def rows_backward(launch: Launch) -> Iterator[Step]:
    """Layer and RMS norm; over many short rows one partial sum for each tile of rows, then sums.

    The sums are new tensors in the place of the results that were made first.
    """
    gradient, source = launch["grad_out"], launch["input"]
    yield from contiguous(gradient, source)
    columns = torch.Size(launch["normalized_shape"]).numel()
    rows = source.numel() // max(1, columns)
    across = -(-columns // TILE_COLUMNS)
    mask = launch["output_mask"]
    sums = range(int(mask[0]), len(launch.outs))
    if rows <= MANY_ROWS or columns // TILE_COLUMNS >= launch.card.processors // 2 or not sums:
        yield from outs(launch)
        return
    if mask[0]:
        yield out(0)
    for number in sums:
        yield temporary(f"first {number}", launch.outs[number].nbytes)
    tiles = min(MOST_BLOCKS // across, -(-rows // TILE_ROWS))
    for number in sums:
        yield temporary(f"tiles {number}", tiles * launch.outs[number].nbytes)
    for number in sums:
        partial = torch.empty(tiles, columns, dtype=launch.outs[number].dtype, device="meta")
        item = staging.accumulator(partial.dtype)
        size, semaphores = staging.staging(staging.geometry(partial, [0]), item, launch.card)
        yield out(number)
        if size:
            yield from (temporary("staging", size), temporary("semaphores", semaphores))
            yield from (drop("semaphores"), drop("staging"))
        yield drop(f"first {number}")


def group_norm(launch: Launch) -> Iterator[Step]:
    """A factor and a summand for each channel of each sample, in float32 for half types."""
    yield from on_input(launch)
    if launch["HxW"] != 1 and (launch["weight"] is not None or launch["bias"] is not None):
        yield from _for_each(launch, "channel", "factor", "summand")


def group_norm_backward(launch: Launch) -> Iterator[Step]:
    """Two sums for each channel of each sample; of each group what the input's gradient needs."""
    yield from contiguous(launch.call.args[0], launch.call.args[1])
    yield from outs(launch)
    flat = launch["HxW"] == 1
    if not flat:
        yield from _for_each(launch, "channel", "sum of products", "sum")
    if launch["output_mask"][0]:
        yield from _for_each(launch, "group", "factor", "summand")
        if launch["weight"] is not None and not flat:
            yield from _for_each(launch, "channel", "scale")


def _for_each(launch: Launch, what: str, *names: str) -> Iterator[Step]:
    count = launch["N"] * (launch["C"] if what == "channel" else launch["group"])
    for name in names:
        yield temporary(f"{name} of a {what}", count * _wide(launch["input"]))


def native_batch_norm(launch: Launch) -> Iterator[Step]:
    """torch's own kernel; with channels last the statistics of many rows are staged."""
    yield from outs(launch)
    if launch["training"]:
        yield from _staged(launch["input"], 4)


def native_batch_norm_backward(launch: Launch) -> Iterator[Step]:
    """One kernel for all where channels come first, else sums, then the input's gradient."""
    source, weight, mask = launch["input"], launch["weight"], launch["output_mask"]
    if not _channels_last(source):
        yield from outs(launch)
        return
    size = source.size(1) * _wide(source)
    saved = launch["save_invstd"]
    if saved is None or not saved.numel():
        yield temporary("inverse of the deviation", size)
    if any(mask[1:]) or launch["train"]:
        yield from (temporary("sum", size), temporary("sum of products", size))
        for number in range(int(mask[0]), len(launch.outs)):
            yield out(number)
        if weight is not None and not all(mask[1:]):
            yield temporary("sums nobody wants", (2 - sum(mask[1:])) * weight.nbytes)
        yield from _staged(source, 2)
        yield from (drop("semaphores"), drop("staging"))
    if mask[0]:
        yield out(0)


def _channels_last(source: torch.Tensor) -> bool:
    """batch_norm_use_channels_last_kernels."""
    return (
        (source.dim() == 4 and source.is_contiguous(memory_format=torch.channels_last))
        or (source.dim() == 5 and source.is_contiguous(memory_format=torch.channels_last_3d))
        or (source.is_contiguous() and source.stride(1) == 1)
    )


def _wide(source: torch.Tensor) -> int:
    """Bytes of a number that sums are kept in."""
    return 4 if source.dtype in (torch.float16, torch.bfloat16) else source.element_size()


def _staged(source: torch.Tensor, numbers: int) -> Iterator[Step]:
    """What the blocks of one channel's rows hand to the last of them.

    cuda/Normalization.cuh: flexible_launch_configs
    """
    if not _channels_last(source):
        return
    channels = source.size(1)
    rows = source.numel() // max(1, channels)
    across = min(_power_below(channels), 32)
    down = min(_power_below(-(-rows // 16)), 512 // across)
    if across * down != 512:
        across = min(_power_below(channels), 512 // down)
    blocks = min(-(-rows // (down * 16)), 128)
    if blocks >= 8:
        yield temporary("staging", numbers * channels * blocks * _wide(source))
        yield temporary("semaphores", -(-channels // across) * 4)


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def cudnn_batch_norm(launch: Launch) -> Iterator[Step]:
    """cuDNN's kernel; without an activation in it, it keeps no reserve."""
    yield from outs(launch)
    yield DNN


def cudnn_batch_norm_backward(launch: Launch) -> Iterator[Step]:
    """The gradient is brought into the input's format."""
    gradient, wanted = launch["grad_output"], suggest_memory_format(launch["input"])
    if not gradient.is_contiguous(memory_format=wanted):
        yield temporary("gradient", gradient.numel() * gradient.element_size())
    yield from cudnn_batch_norm(launch)


OPERATORS = (
    Operator(("batch_norm",), composite=batch_norm),
    Operator(("rms_norm",), composite=rms_norm if _is_composite_here() else None),
    Operator(
        ("native_layer_norm",),
        refuse=_check_weight,
        memory=on_input,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: layer_norm_cuda",
        shown_by="vit_b_16_b32_adamw, forward",
    ),
    Operator(
        ("_fused_rms_norm",),
        memory=on_input,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: layer_norm_cuda",
        shown_by="vit_b_16_b32_adamw, forward",
    ),
    Operator(
        ("native_layer_norm_backward", "_fused_rms_norm_backward"),
        memory=rows_backward,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: LaunchGammaBetaBackwardCUDAKernel",
        shown_by="swin_t_b32_adamw and convnext_tiny_b32_adamw, backward",
    ),
    Operator(
        ("native_group_norm",),
        memory=group_norm,
        source="aten/src/ATen/native/cuda/group_norm_kernel.cu: GroupNormKernelImplInternal",
        shown_by="none of the H100's runs has one",
    ),
    Operator(
        ("native_group_norm_backward",),
        memory=group_norm_backward,
        source="aten/src/ATen/native/cuda/group_norm_kernel.cu: "
        "GroupNormBackwardKernelImplInternal",
        shown_by="none of the H100's runs has one",
    ),
    Operator(
        ("native_batch_norm",),
        memory=native_batch_norm,
        source="aten/src/ATen/native/cuda/Normalization.cu: batch_norm_cuda",
        shown_by="resnet50_b64_sgdm_ampbf16",
    ),
    Operator(
        ("native_batch_norm_backward",),
        memory=native_batch_norm_backward,
        source="aten/src/ATen/native/cuda/Normalization.cu: batch_norm_backward_cuda",
        shown_by="resnet50_b64_sgdm_ampbf16",
    ),
    Operator(
        ("cudnn_batch_norm",),
        memory=cudnn_batch_norm,
        source="aten/src/ATen/native/cudnn/BatchNorm.cpp",
        shown_by="resnet50_b32_sgdm",
    ),
    Operator(
        ("cudnn_batch_norm_backward",),
        memory=cudnn_batch_norm_backward,
        source="aten/src/ATen/native/cudnn/BatchNorm.cpp",
        shown_by="resnet50_b32_sgdm",
    ),
    Operator(("batch_norm_elemt", "batch_norm_backward_elemt"), shape=like("input")),
    Operator(("batch_norm_backward_reduce",), shape=_statistics(4)),
    Operator(
        (
            *("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"),
            *("batch_norm_stats", "batch_norm_update_stats"),
        ),
        shape=_statistics(2),
    ),
)
