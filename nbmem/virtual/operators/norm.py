"""Normalisation and softmax: kernels that want contiguous inputs copy others first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from nbmem.virtual.operators import reduce
from nbmem.virtual.operators.operator import DNN, Kernel, drop, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operators.operator import Launch, Step


def contiguous(*tensors: Any) -> Iterator[Step]:
    """Copies of the arguments that are not contiguous; they live until the kernel is launched."""
    for number, tensor in enumerate(tensors):
        if tensor is not None and not tensor.is_contiguous():
            yield temporary(f"contiguous {number}", tensor.numel() * tensor.element_size())


def _outs(launch: Launch) -> Iterator[Step]:
    for number in range(len(launch.outs)):
        yield out(number)


def on_input(launch: Launch) -> Iterator[Step]:
    """The input is made contiguous."""
    yield from contiguous(launch.call.args[0])
    yield from _outs(launch)


def softmax(launch: Launch) -> Iterator[Step]:
    """The result, then a contiguous copy of the input where it is not."""
    yield from _outs(launch)
    yield from contiguous(launch.call.args[0])


def softmax_backward(launch: Launch) -> Iterator[Step]:
    """The result, then gradient times output, which the kernel reads in the gradient's place."""
    gradient, output = launch.call.args[:2]
    product = gradient * output
    yield from _outs(launch)
    yield temporary("gradient * output", product.numel() * product.element_size())
    yield from contiguous(product, output)


def log_softmax_backward(launch: Launch) -> Iterator[Step]:
    """The result, then contiguous copies of the gradient and of the output."""
    yield from _outs(launch)
    yield from contiguous(launch.call.args[0], launch.call.args[1])


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
        yield from _outs(launch)
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
        item = reduce.accumulator(partial.dtype)
        staging, semaphores = reduce.staging(reduce.geometry(partial, [0]), item, launch.card)
        yield out(number)
        if staging:
            yield from (temporary("staging", staging), temporary("semaphores", semaphores))
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
    yield from _outs(launch)
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
    yield from _outs(launch)
    if launch["training"]:
        yield from _staged(launch["input"], 4)


def native_batch_norm_backward(launch: Launch) -> Iterator[Step]:
    """One kernel for all where channels come first, else sums, then the input's gradient."""
    source, weight, mask = launch["input"], launch["weight"], launch["output_mask"]
    if not _channels_last(source):
        yield from _outs(launch)
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


def batch_norm(launch: Launch) -> Iterator[Step]:
    """cuDNN's kernel; without an activation in it, it keeps no reserve."""
    yield from _outs(launch)
    yield DNN


def batch_norm_backward(launch: Launch) -> Iterator[Step]:
    """The gradient is brought into the input's format."""
    gradient, wanted = launch["grad_output"], suggest_memory_format(launch["input"])
    if not gradient.is_contiguous(memory_format=wanted):
        yield temporary("gradient", gradient.numel() * gradient.element_size())
    yield from batch_norm(launch)


KERNELS = (
    Kernel(
        ops=("native_layer_norm", "_fused_rms_norm"),
        rule=on_input,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: layer_norm_cuda",
        shown_by="vit_b_16_b32_adamw, forward",
    ),
    Kernel(
        ops=("_softmax", "_log_softmax"),
        rule=softmax,
        source="aten/src/ATen/native/cuda/SoftMax.cu: host_softmax",
        shown_by="vit_b_16_b32_adamw, forward",
    ),
    Kernel(
        ops=("_softmax_backward_data",),
        rule=softmax_backward,
        source="aten/src/ATen/native/cuda/SoftMax.cu: TORCH_IMPL_FUNC(softmax_backward_cuda_out)",
        shown_by="none of the H100's runs; torch 2.13's CUDA build, run without a card",
    ),
    Kernel(
        ops=("_log_softmax_backward_data",),
        rule=log_softmax_backward,
        source="aten/src/ATen/native/cuda/SoftMax.cu: host_softmax_backward",
        shown_by="vit_b_16_b32_adamw, backward",
    ),
    Kernel(
        ops=("native_layer_norm_backward", "_fused_rms_norm_backward"),
        rule=rows_backward,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: LaunchGammaBetaBackwardCUDAKernel",
        shown_by="swin_t_b32_adamw and convnext_tiny_b32_adamw, backward",
    ),
    Kernel(
        ops=("native_group_norm",),
        rule=group_norm,
        source="aten/src/ATen/native/cuda/group_norm_kernel.cu: GroupNormKernelImplInternal",
        shown_by="none of the H100's runs has one",
    ),
    Kernel(
        ops=("native_group_norm_backward",),
        rule=group_norm_backward,
        source="aten/src/ATen/native/cuda/group_norm_kernel.cu: "
        "GroupNormBackwardKernelImplInternal",
        shown_by="none of the H100's runs has one",
    ),
    Kernel(
        ops=("native_batch_norm",),
        rule=native_batch_norm,
        source="aten/src/ATen/native/cuda/Normalization.cu: batch_norm_cuda",
        shown_by="resnet50_b64_sgdm_ampbf16",
    ),
    Kernel(
        ops=("native_batch_norm_backward",),
        rule=native_batch_norm_backward,
        source="aten/src/ATen/native/cuda/Normalization.cu: batch_norm_backward_cuda",
        shown_by="resnet50_b64_sgdm_ampbf16",
    ),
    Kernel(
        ops=("cudnn_batch_norm",),
        rule=batch_norm,
        source="aten/src/ATen/native/cudnn/BatchNorm.cpp",
        shown_by="resnet50_b32_sgdm",
    ),
    Kernel(
        ops=("cudnn_batch_norm_backward",),
        rule=batch_norm_backward,
        source="aten/src/ATen/native/cudnn/BatchNorm.cpp",
        shown_by="resnet50_b32_sgdm",
    ),
)
