"""Transposed convolutions that cuDNN does not take.

Their output is padded by as much as their stride, or more. Torch's own kernels unfold each
image into columns, one group after the other.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cuda/
NaiveConvolutionTranspose2d.cu, NaiveConvolutionTranspose3d.cu; ../Convolution.cpp
(is_output_padding_big, subtensor)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nbmem.virtual.operator_model.operator import Launch, Step, drop, out, temporary

if TYPE_CHECKING:
    import torch

    from nbmem.virtual.tensors.operator_call import OperatorCall

_AXES = ("depth", "height", "width")


def _each(call: OperatorCall, name: str) -> list[int]:
    """Return one number for each spatial dimension."""
    values, rank = call.argument(name), call.argument("weight").dim() - 2
    return [int(value) for value in values] * (rank if len(values) == 1 else 1)


def cudnn_refuses(call: OperatorCall) -> bool:
    """Return whether cuDNN refuses the call, by its output padding."""
    if not call.argument("transposed"):
        return False
    pairs = zip(_each(call, "output_padding"), _each(call, "stride"), strict=True)
    return any(padding >= stride for padding, stride in pairs)


def refuse(call: OperatorCall) -> None:
    """Refuse an output padding that torch's own kernels do not take.

    Raises:
        RuntimeError: A side is padded by as much as both its stride and its dilation.
    """
    if not cudnn_refuses(call):
        return
    # A convolution along one dimension runs as one along two.
    names = ("output_padding", "stride", "dilation")
    found = {name: _each(call, name) for name in names}
    if len(found["stride"]) == 1:
        found = {name: [int(name != "output_padding"), *each] for name, each in found.items()}
    sides = zip(*found.values(), strict=True)
    if any(padding >= stride and padding >= dilation for padding, stride, dilation in sides):
        axes = _AXES[-len(found["stride"]) :]
        said = " ".join(
            f"{name}_{axis}: {value}"
            for name, each in found.items()
            for axis, value in zip(axes, each, strict=True)
        )
        raise RuntimeError(
            f"output padding must be smaller than either stride or dilation, but got {said}"
        )


def forward(launch: Launch) -> Iterator[Step]:
    """Yield the result, or the groups' results and then the whole."""
    groups = int(launch["groups"])
    if groups == 1:
        yield from _copied("input", launch["input"])
        yield from _of_group(launch, out(), launch["input"].nbytes)
        yield drop("input")
        return
    for group in range(groups):
        yield from _copied("input", _part(launch["input"], group, groups))
        part = temporary(f"part {group}", launch.outs[0].nbytes // groups)
        yield from _of_group(launch, part, launch["input"].nbytes // groups)
        yield drop("input")
    yield out()
    for group in range(groups):
        yield drop(f"part {group}")


def _of_group(launch: Launch, result: Step, nbytes: int) -> Iterator[Step]:
    """Yield a group's result, its columns, and ones that spread the bias.

    In three dimensions the result has the input's size at first.
    """
    solid = launch["weight"].dim() == 5
    if solid:
        yield temporary("of the input's size", nbytes)
    yield result
    if solid:
        yield drop("of the input's size")
    yield temporary("columns", _columns(launch))
    if launch["bias"] is not None:
        spatial = launch.outs[0].size[2:]
        ones = launch.outs[0].dtype.itemsize
        for length in spatial:
            ones *= length
        yield temporary("ones", ones)
        yield drop("ones")
    yield drop("columns")


def _columns(launch: Launch) -> int:
    """Return the bytes of one unfolded image of a group."""
    source, weight = launch["input"], launch["weight"]
    return int(weight.size()[1:].numel() * source.size()[2:].numel() * source.element_size())


def _part(tensor: torch.Tensor, group: int, groups: int) -> torch.Tensor:
    """Return a group's channels."""
    channels = tensor.size(1) // groups
    return tensor.narrow(1, group * channels, channels)


def _copied(name: str, tensor: torch.Tensor) -> Iterator[Step]:
    if not tensor.is_contiguous():
        yield temporary(name, tensor.numel() * tensor.element_size())


def backward(launch: Launch) -> Iterator[Step]:
    """Yield the gradients of input, weight and bias.

    The gradients of groups are concatenated at the end.
    """
    groups = int(launch["groups"])
    gradient, source = launch["grad_output"], launch["input"]
    if groups == 1:
        results: list[Any] = [out(n) for n in range(len(launch.outs))]
        yield from _gradients(launch, results, gradient, source)
        return
    sizes = [spec.nbytes for spec in launch.outs]
    for group in range(groups):
        yield from _copied("gradient", _part(gradient, group, groups))
        yield from _copied("input", _part(source, group, groups))
        parts = [temporary(f"{n} of {group}", size // groups) for n, size in enumerate(sizes)]
        yield from _gradients(launch, parts)
        yield from (drop("input"), drop("gradient"))
    for number in range(len(sizes)):
        yield out(number)
    for number in reversed(range(len(sizes))):
        for group in range(groups):
            yield drop(f"{number} of {group}")


def _gradients(
    launch: Launch,
    results: list[Any],
    gradient: torch.Tensor | None = None,
    source: torch.Tensor | None = None,
) -> Iterator[Step]:
    """Yield the columns and copies of the two gradient kernels.

    Each kernel has columns, and its own copy of tensors that are not stored by rows.
    """
    mask = launch["output_mask"]
    columns = temporary("columns", _columns(launch)), drop("columns")
    left = iter(results)
    if mask[0]:
        if gradient is not None:
            yield from _copied("own gradient", gradient)
        yield next(left)
        yield from columns
        yield drop("own gradient")
    if mask[1] or mask[2]:
        yield from left
        if gradient is not None and source is not None:
            yield from _copied("own gradient", gradient)
            yield from _copied("own input", source)
        yield from columns
        yield from (drop("own input"), drop("own gradient"))
