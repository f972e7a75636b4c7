"""Workspaces of cuDNN's convolutions and recurrent layers on a grid: no other source has them."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from tests.card.asked import asked, warm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.card.parts import Case

DTYPES = ("float32", "bfloat16", "float16")
IMAGES = (
    # channels in and out, height and width, kernel, stride, groups
    (3, 64, 224, 7, 2, 1),
    (3, 96, 224, 4, 4, 1),
    (64, 64, 56, 3, 1, 1),
    (64, 256, 56, 1, 1, 1),
    (128, 128, 56, 3, 2, 1),
    (128, 128, 32, 5, 1, 1),
    (256, 256, 28, 3, 1, 1),
    (512, 512, 14, 3, 1, 1),
    (512, 2048, 7, 1, 1, 1),
    (96, 96, 56, 7, 1, 96),
    (96, 96, 112, 3, 2, 96),
    (256, 256, 28, 3, 1, 32),
)
BATCHES = (1, 8, 32)
LAYERS = (
    # kind, layers, of both directions, dropout between
    ("LSTM", 1, False, 0.0),
    ("LSTM", 2, True, 0.5),
    ("GRU", 1, False, 0.0),
    ("GRU", 3, True, 0.0),
    ("RNN", 2, False, 0.0),
)
SHAPES = ((64, 200, 128, 256), (32, 128, 256, 512), (8, 35, 650, 650), (1, 16, 64, 64))
"""Of recurrent layers: batch, length, input and hidden size."""


def cases() -> Iterator[Case]:
    """The middle batch of each first: what an interruption leaves out is alike to what is there."""
    warm()
    order = sorted(BATCHES, key=lambda batch: abs(batch - 8))
    for batch, dtype, image, layout in product(
        order, DTYPES, IMAGES, ("contiguous_format", "channels_last")
    ):
        inner, outer, side, kernel, stride, groups = image
        name = f"conv2d {dtype} {batch}x{inner}x{side}x{side} to {outer} kernel {kernel}"
        yield (
            f"{name} stride {stride} groups {groups} {layout}",
            partial(convolution, batch, dtype, image, layout),
        )
        if (batch, layout, image) == (8, "channels_last", IMAGES[-1]):
            yield from recurrent(dtype)


def recurrent(dtype: str) -> Iterator[Case]:
    """The recurrent layers of one type."""
    for layer, shape in product(LAYERS, SHAPES):
        kind, layers, both, dropout = layer
        way = " both ways" if both else ""
        yield (
            f"{kind} {dtype} {'x'.join(map(str, shape))} layers {layers}{way} dropout {dropout}",
            partial(recurrence, dtype, layer, shape),
        )


def convolution(batch: int, dtype: str, image: tuple[int, ...], layout: str) -> Any:
    """A convolution without a bias, and its backward for input and weight."""
    import torch

    inner, outer, side, kernel, stride, groups = image
    way = getattr(torch, layout)

    def make() -> list[Any]:
        options = {"device": "cuda", "dtype": getattr(torch, dtype)}
        x = torch.randn(batch, inner, side, side, **options)
        w = torch.randn(outer, inner // groups, kernel, kernel, **options)
        return [one.contiguous(memory_format=way).requires_grad_() for one in (x, w)]

    padding = kernel // 2 if stride < kernel else 0
    convolve = torch.nn.functional.conv2d
    return asked(make, lambda x, w: convolve(x, w, None, stride, padding, 1, groups))


def recurrence(dtype: str, layer: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    """A recurrent layer that trains, its batch first."""
    import torch

    kind, layers, both, dropout = layer
    batch, length, inner, hidden = shape

    def make() -> list[Any]:
        options = {"num_layers": layers, "bidirectional": both, "dropout": dropout}
        net = getattr(torch.nn, kind)(inner, hidden, batch_first=True, **options)
        x = torch.randn(batch, length, inner, device="cuda", dtype=getattr(torch, dtype))
        return [net.to("cuda", getattr(torch, dtype)), x.requires_grad_()]

    return asked(make, lambda net, x: net(x)[0])
