"""Convolutions through cuDNN: most kernels work on channels-last copies in their workspace.

Read from the recordings of an H100 (torch 2.11, cuDNN 9): for contiguous inputs a workspace is
the channels-last copies of what the kernel reads and writes, to the byte but for alignment; the
gradient of the weight adds partial sums. Which kernel cuDNN takes is its own heuristic, so this is
a model of the common choice; it can be off by one of the copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.kernels import reduce
from nbmem.virtual.kernels.plan import DNN, Kernel, drop, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.kernels.plan import Launch, Step

ALIGNMENT = 147
"""Bytes beyond the copies: 16 or 147 in the recordings."""
DIRECT = 400
"""Bytes of a kernel that reads the contiguous layout itself: 1x1 with stride 1, 0 or 400."""
TILE = 128
"""Rows and columns of one tile of a weight gradient's matrix product."""
LEAST_DEPTH = 1568
"""Terms of one partial sum: 12,544 are split into 8 (resnet152_b16), 25,088 into 15."""
PADDED_CHANNELS = {torch.float32: 1, torch.float16: 4, torch.bfloat16: 8}
"""What few input channels are padded to (resnet50: 7x7 over 3 channels)."""
FEW_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution; sizes in bytes.

    Attributes:
        source: Of its input.
        result: Of its output.
        weight: Of its weights.
        kernel: Elements of the window.
        strided: Whether it skips positions.
        channels: Of the input.
        groups: Of channels.
        last: Whether input or weight are channels-last already.
        item: Of one element.
    """

    source: int
    result: int
    weight: int
    kernel: int
    strided: bool
    channels: int
    groups: int
    last: bool
    item: int

    @property
    def plain(self) -> bool:
        """A matrix product on the contiguous layout: no copy is needed."""
        return self.kernel == 1 and not self.strided

    @property
    def copies(self) -> int:
        """Channels-last copies of all three; a 1x1 weight has the same layout either way."""
        return self.source + self.result + (self.weight if self.kernel > 1 else 0) + ALIGNMENT

    @property
    def direct(self) -> bool:
        """Kernels without a copy: depthwise, patches, and 3x3 over the channels of an image."""
        return self.groups > 1 or self.last or (self.channels <= FEW_CHANNELS and self.kernel != 49)


def of(
    source: torch.Tensor, weight: torch.Tensor, result_numel: int, launch: Launch
) -> Convolution:
    """Read a convolution from its tensors."""
    item = source.element_size()
    channels, kernel = source.size(1), weight[0, 0].numel()
    padded = channels
    if channels <= FEW_CHANNELS:
        padded = max(channels, PADDED_CHANNELS.get(source.dtype, 1))
    return Convolution(
        source=source.numel() // max(1, channels) * padded * item,
        result=result_numel * item,
        weight=weight.numel() // max(1, weight.size(1)) * max(weight.size(1), padded) * item
        if channels <= FEW_CHANNELS
        else weight.numel() * item,
        kernel=kernel,
        strided=any(s > 1 for s in launch["stride"]),
        channels=channels,
        groups=int(launch["groups"]),
        last=_last(source) or _last(weight),
        item=item,
    )


def _last(tensor: torch.Tensor) -> bool:
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def forward(launch: Launch) -> Iterator[Step]:
    """The result, then copies in the format of the other, then the workspace."""
    source, weight = launch["input"], launch["weight"]
    shape = of(source, weight, _numel(launch.outs[0].size), launch)
    yield out()
    yield from _same_format(source, weight)
    yield DNN
    if shape.direct:
        return
    size = shape.copies
    if shape.plain:
        size = DIRECT
    elif shape.kernel == 1 and shape.item == 4:
        # Strided 1x1 in float32: the result is written in place, the weight copied (resnet50, the
        # largest one; its two smaller ones copy the result instead).
        size = shape.source + shape.weight + ALIGNMENT
    yield temporary("workspace", size)


def backward(launch: Launch) -> Iterator[Step]:
    """Gradients of input, weight and bias, one kernel after the other."""
    gradient, source, weight = launch["grad_output"], launch["input"], launch["weight"]
    shape = of(source, weight, gradient.numel(), launch)
    mask = launch["output_mask"]
    yield DNN
    number = 0
    if mask[0]:
        yield out(number)
        number += 1
        if not shape.direct:
            yield temporary("for input", DIRECT if shape.plain else shape.copies)
            yield drop("for input")
    if mask[1]:
        yield out(number)
        number += 1
        if not shape.direct:
            yield temporary("for weight", for_weight(shape, gradient, weight, launch))
            yield drop("for weight")
    if mask[2]:
        yield out(number)
        dims = [d for d in range(gradient.dim()) if d != 1]
        layout = reduce.geometry(gradient, dims)
        size, semaphores = reduce.staging(layout, reduce.accumulator(gradient.dtype), launch.card)
        if size:
            yield temporary("staging", size)
            yield temporary("semaphores", semaphores)


def for_weight(
    shape: Convolution, gradient: torch.Tensor, weight: torch.Tensor, launch: Launch
) -> int:
    """Bytes of the weight gradient's workspace.

    A matrix product is split so that its tiles fill the card once; each part has a float32 result
    of its own. A 1x1 convolution may instead make one for each image without copying anything: the
    smaller of both is what most recordings show (not squeezenet1_1 and a few of densenet121).
    """
    partial = weight.numel() * 4
    rows, columns = weight.size(0), weight[0].numel()
    depth = gradient.numel() // max(1, gradient.size(1))
    tiles = -(-rows // TILE) * -(-columns // TILE)
    splits = max(1, min(-(-launch.card.processors // tiles), depth // LEAST_DEPTH))
    copied = shape.source + shape.result + ALIGNMENT
    if splits > 1 and shape.item == 4:
        copied += splits * partial
    elif shape.kernel > 1:
        copied += shape.weight
    if shape.plain:
        return min(copied, gradient.size(0) * partial + DIRECT)
    return copied


def _same_format(source: torch.Tensor, weight: torch.Tensor) -> Iterator[Step]:
    """If one is channels-last, the other is copied to be so."""
    for name, one, other in (("weight", weight, source), ("input", source, weight)):
        if _last(other) and not _last(one) and one.size(1) > 1:
            yield temporary(name, one.numel() * one.element_size())


def _numel(size: tuple[int, ...]) -> int:
    return torch.Size(size).numel()


SOURCE = "aten/src/ATen/native/cudnn/Conv_v8.cpp; the sizes of the workspaces are inferred"
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
