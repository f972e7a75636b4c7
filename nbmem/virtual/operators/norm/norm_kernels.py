"""Memory plans of norm kernels, which copy inputs that lack their format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from nbmem.virtual.operator_model.operator import (
    DNN,
    HALVES,
    contiguous,
    drop,
    out,
    outs,
    temporary,
)
from nbmem.virtual.operators.norm.choice import uses_cudnn
from nbmem.virtual.operators.reduce import staging

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step


def contiguous_input_norm(launch: Launch) -> Iterator[Step]:
    """Plan a contiguous copy of the input, then the results."""
    yield from contiguous(launch.call.args[0])
    yield from outs(launch)


MANY_ROWS = 64 << 10
"""Beyond so many rows a norm over few columns adds up its weights' gradients in two passes."""
TILE_COLUMNS, TILE_ROWS, MOST_BLOCKS = 32, 32, 32 << 10


def rows_backward(launch: Launch) -> Iterator[Step]:
    """Plan the backward of layer norm and RMS norm.

    Over many short rows there is one partial sum for each tile of rows. These are summed
    afterwards.

    The sums are new tensors; they replace the results that were made first.
    """
    gradient, source = launch["grad_out"], launch["input"]
    yield from contiguous(source)
    columns = torch.Size(launch["normalized_shape"]).numel()
    rows = source.numel() // max(1, columns)
    across = -(-columns // TILE_COLUMNS)
    mask = launch["output_mask"]
    sums = range(int(mask[0]), len(launch.outs))
    if rows <= MANY_ROWS or columns // TILE_COLUMNS >= launch.card.processors // 2 or not sums:
        yield from outs(launch)
        yield from _own_copy(gradient)
        return
    if mask[0]:
        yield out(0)
    for number in sums:
        yield temporary(f"first {number}", launch.outs[number].nbytes)
    yield from _own_copy(gradient)
    tiles = min(MOST_BLOCKS // across, -(-rows // TILE_ROWS))
    for number in sums:
        yield temporary(f"tiles {number}", tiles * launch.outs[number].nbytes)
    for number in sums:
        partial = torch.empty(tiles, columns, dtype=launch.outs[number].dtype, device="meta")
        item = staging.accumulator_bytes(partial.dtype)
        size, semaphores = staging.staging(staging.geometry(partial, [0]), item, launch.card)
        yield out(number)
        if size:
            yield from (temporary("staging", size), temporary("semaphores", semaphores))
            yield from (drop("semaphores"), drop("staging"))
        yield drop(f"first {number}")


def _own_copy(gradient: torch.Tensor) -> Iterator[Step]:
    if not gradient.is_contiguous():
        yield temporary("gradient", gradient.numel() * gradient.element_size())


def group_norm(launch: Launch) -> Iterator[Step]:
    """Plan group norm: results, input copy, and scale and shift per channel.

    The last two are for each channel of each sample, in float32 for half types. In some
    releases half types also need the groups' means and deviations in float32. The order of copy
    and results depends on torch's release.
    """
    copies = contiguous(launch.call.args[0])
    parts = (
        (outs(launch), copies) if launch.rules.group_norm_copies_late else (copies, outs(launch))
    )
    for part in parts:
        yield from part
    if launch.rules.group_norm_means_wide and launch.outs[1].dtype in HALVES:
        yield from _for_each(launch, "group", "mean", "deviation")
    if launch["HxW"] != 1 and (launch["weight"] is not None or launch["bias"] is not None):
        yield from _for_each(launch, "channel", "factor", "summand")


def group_norm_backward(launch: Launch) -> Iterator[Step]:
    """Plan the backward: two sums per channel of each sample.

    Of each group there are the two numbers that the input's gradient needs.
    """
    yield from contiguous(launch.call.args[0], launch.call.args[1])
    yield from outs(launch)
    flat = launch["HxW"] == 1
    if not (flat and launch.rules.group_norm_sums_planes):
        yield from _for_each(launch, "channel", "sum of products", "sum")
    if launch["output_mask"][0]:
        yield from _for_each(launch, "group", "factor", "summand")
        if launch["weight"] is not None and not flat:
            yield from _for_each(launch, "channel", "scale")
        yield from (drop("summand of a group"), drop("factor of a group"))


def _for_each(launch: Launch, what: str, *names: str) -> Iterator[Step]:
    count = launch["N"] * (launch["C"] if what == "channel" else launch["group"])
    for name in names:
        yield temporary(f"{name} of a {what}", count * _accumulator_bytes(launch["input"]))


def native_batch_norm(launch: Launch) -> Iterator[Step]:
    """Plan torch's own kernel.

    With channels last the statistics of many rows are staged.
    """
    yield from outs(launch)
    if launch["training"]:
        yield from _staged(launch["input"], 4)


def native_batch_norm_backward(launch: Launch) -> Iterator[Step]:
    """Plan the backward of torch's own batch norm kernel.

    One kernel does all where channels come first. Else there are sums, then the input's
    gradient.
    """
    yield from _native_backward(launch, launch["save_invstd"], training=launch["train"])


def batch_norm_backward(launch: Launch) -> Iterator[Step]:
    """Plan the backward of `_batch_norm_with_update`, cuDNN's or native."""
    running = launch["running_mean"], launch["running_var"]
    if uses_cudnn(launch["input"], launch["weight"], running, training=True):
        yield from _on_formatted(launch, launch["grad_out"])
    else:
        yield from _native_backward(launch, launch["save_var"], training=launch["update"])


def _native_backward(launch: Launch, saved: Any, *, training: bool) -> Iterator[Step]:
    source, weight, mask = launch["input"], launch["weight"], launch["output_mask"]
    if not _channels_last(source):
        yield from outs(launch)
        return
    size = source.size(1) * _accumulator_bytes(source)
    if saved is None or not saved.numel():
        yield temporary("inverse of the deviation", size)
    if any(mask[1:]) or training:
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
    """Return batch_norm_use_channels_last_kernels for an input."""
    return (
        (source.dim() == 4 and source.is_contiguous(memory_format=torch.channels_last))
        or (source.dim() == 5 and source.is_contiguous(memory_format=torch.channels_last_3d))
        or (source.dim() > 1 and source.is_contiguous() and source.stride(1) == 1)
    )


def _accumulator_bytes(source: torch.Tensor) -> int:
    """Return the bytes of a number that sums are kept in."""
    return 4 if source.dtype in (torch.float16, torch.bfloat16) else source.element_size()


def _staged(source: torch.Tensor, numbers: int) -> Iterator[Step]:
    """Plan the staging of a channel's rows between blocks.

    Each block passes its statistics to the last block.

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
        yield temporary("staging", numbers * channels * blocks * _accumulator_bytes(source))
        yield temporary("semaphores", -(-channels // across) * 4)


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def cudnn_batch_norm(launch: Launch) -> Iterator[Step]:
    """Plan cuDNN's batch norm kernel.

    It has no reserve, as there is no activation in it.
    """
    yield from outs(launch)
    yield DNN
    if launch["training"]:
        rows = 160 if launch["input"].dtype in HALVES else 64
        yield from _sums_of_rows(launch["input"], rows, forward=True)


def _sums_of_rows(source: torch.Tensor, rows: int, *, forward: bool) -> Iterator[Step]:
    """Plan cuDNN's sums: two per channel for each block of rows.

    Only channels last needs them, and channels are rounded up to 64. There is a counter for
    each 64 channels, and in the forward pass one for each block.

    Measured on an H100 (torch 2.11, cuDNN 9.19): equal in 7,260 of 7,348 calls in 54 steps of
    networks. 58 channels take a little more. No other card was measured.
    """
    if source.dim() != 4 or source.element_size() > 4:
        return
    if suggest_memory_format(source) is not torch.channels_last:
        return
    channels = source.size(1)
    blocks = -(-(source.numel() // max(1, channels)) // rows)
    fixed, counters = (1072, blocks + 1) if forward else (1056, 1)
    each = 512 * blocks + 4 * counters
    yield temporary("sums of rows", fixed + -(-channels // 64) * each)


def cudnn_batch_norm_backward(launch: Launch) -> Iterator[Step]:
    """Plan cuDNN's backward, with the gradient in the input's format."""
    yield from _on_formatted(launch, launch["grad_output"])


def _on_formatted(launch: Launch, gradient: torch.Tensor) -> Iterator[Step]:
    wanted = suggest_memory_format(launch["input"])
    if not gradient.is_contiguous(memory_format=wanted):
        yield temporary("gradient", gradient.numel() * gradient.element_size())
    yield from outs(launch)
    yield DNN
    yield from _sums_of_rows(launch["input"], 96, forward=False)
