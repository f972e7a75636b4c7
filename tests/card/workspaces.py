"""Part `workspaces`: those of cuDNN's convolutions and recurrent layers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.card.allocator_requests import requests_by_moment, warm_up_libraries

if TYPE_CHECKING:
    from tests.card.parts import Case

DTYPES = ("float32", "bfloat16", "float16")


class Convolution(NamedTuple):
    """A convolution without a bias.

    Attributes:
        batch: Images.
        inner: Channels in.
        outer: Channels out.
        side: Elements of the image in each dimension.
        kernel: Elements of the window in each dimension.
        stride: Stride in each dimension.
        groups: Groups of channels.
        dtype: Type of all tensors; "float32, no tf32" is in full precision.
        last: Whether they are channels last.
        padding: None: half the kernel.
        dilation: Dilation in each dimension.
        dimensions: Dimensions of the image.
        transposed: Whether it is conv_transpose.
        benchmark: Whether cuDNN's kernels are timed first.
    """

    batch: int
    inner: int
    outer: int
    side: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dtype: str = "float32"
    last: bool = False
    padding: int | None = None
    dilation: int = 1
    dimensions: int = 2
    transposed: bool = False
    benchmark: bool = False

    @property
    def pad(self) -> int:
        """Padding on each side."""
        return self.kernel // 2 * self.dilation if self.padding is None else self.padding

    @property
    def nbytes(self) -> int:
        """Return the bytes of the larger of input and result, in float32."""
        result = self.side * self.stride if self.transposed else self.side // self.stride
        inner, outer = self.inner * self.side**self.dimensions, self.outer * result**self.dimensions
        return 4 * self.batch * max(inner, outer)

    def __str__(self) -> str:
        words = [
            f"conv{'_transpose' * self.transposed}{self.dimensions}d {self.dtype}",
            f"{'x'.join(map(str, (self.batch, self.inner, *(self.side,) * self.dimensions)))}",
            f"to {self.outer} kernel {self.kernel} stride {self.stride} padding {self.pad}",
            f"groups {self.groups}",
        ]
        words += [f"dilation {self.dilation}"] * (self.dilation > 1)
        words += ["channels last"] * self.last + ["benchmark"] * self.benchmark
        return " ".join(words)


USUAL = (
    # batch, channels in and out, height and width, kernel, stride, groups: of known networks
    *(Convolution(8, *rest) for rest in (
        (3, 64, 224, 7, 2), (64, 64, 56, 3), (64, 256, 56, 1), (256, 64, 56, 1),
        (128, 128, 56, 3, 2), (128, 512, 28, 1), (256, 256, 28, 3), (256, 1024, 14, 1),
        (512, 512, 14, 3), (512, 2048, 7, 1), (256, 512, 56, 1, 2), (3, 64, 224, 3),
        (64, 64, 224, 3), (3, 32, 224, 3, 2), (3, 16, 32, 3), (1, 32, 28, 3), (1, 6, 28, 5),
        (32, 64, 28, 3), (64, 128, 32, 3), (128, 128, 32, 5), (96, 96, 56, 7, 1, 96),
        (32, 32, 112, 3, 1, 32), (96, 96, 112, 3, 2, 96),
        (960, 960, 7, 5, 1, 960), (256, 256, 28, 3, 1, 32), (16, 96, 112, 1), (192, 32, 28, 1),
        (128, 32, 56, 3),
    )),
    *(Convolution(8, *rest, padding=0) for rest in (
        (3, 96, 224, 4, 4), (3, 768, 224, 16, 16), (96, 192, 56, 2, 2),
        (1, 6, 28, 5), (3, 96, 227, 11, 4), (1, 32, 28, 3), (32, 64, 26, 3),
    )),
    *(Convolution(64, *rest, padding=1) for rest in (
        (3, 64, 64, 4, 2), (64, 128, 32, 4, 2), (128, 256, 16, 4, 2), (256, 512, 8, 4, 2),
    )),
    Convolution(64, 100, 512, 1, 4, padding=0, transposed=True),
    *(Convolution(64, *rest, padding=1, transposed=True) for rest in (
        (512, 256, 4, 4, 2), (256, 128, 8, 4, 2), (128, 64, 16, 4, 2), (64, 3, 32, 4, 2),
    )),
    *(Convolution(8, *rest, padding=0, transposed=True) for rest in (
        (1024, 512, 14, 2, 2), (512, 256, 28, 2, 2), (128, 64, 112, 2, 2),
    )),
    *(Convolution(16, *rest, dimensions=1, dilation=apart) for rest, apart in (
        ((64, 64, 1024, 3), 1), ((64, 64, 1024, 3), 4), ((128, 256, 400, 5), 1),
        ((1, 32, 8000, 9, 4), 1), ((80, 512, 3000, 3), 1), ((512, 512, 1500, 3, 2), 1),
        ((256, 256, 200, 1), 1),
    )),
    *(Convolution(2, *rest, dimensions=3) for rest in (
        (1, 32, 64, 3), (32, 64, 32, 3), (64, 64, 28, 3), (64, 128, 28, 3, 2), (64, 64, 28, 1),
    )),
    *(Convolution(4, *rest, dilation=apart) for rest, apart in (
        ((256, 256, 32, 3), 2), ((2048, 256, 32, 3), 12), ((64, 64, 128, 3), 4),
    )),
)  # fmt: skip
TYPES = (*DTYPES, "float32, no tf32")
BATCHES = (32, 1, 128)
DRAWN = 20_000
SIDES = {
    1: (100, 512, 2000),
    2: (4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224),
    3: (8, 16, 32),
}
MAX_BYTES = 512 << 20
"""Of an input or a result: several processes share a card."""
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
    """Yield known convolutions, recurrent layers, then random convolutions."""
    warm_up_libraries()
    seen = set()
    for one in (*known_convolutions(), *random_convolutions()):
        if one.nbytes <= MAX_BYTES and (name := str(one)) not in seen:
            seen.add(name)
            yield name, partial(convolution, one)
        if len(seen) == len(USUAL) * len(TYPES):
            for dtype in DTYPES:
                yield from recurrent(dtype)


def known_convolutions() -> Iterator[Convolution]:
    """Yield the convolutions of known networks."""
    for last, dtype in product((False, True), TYPES):
        yield from (one._replace(dtype=dtype, last=last) for one in USUAL if not (
            last and one.dimensions == 1))  # fmt: skip
    for batch, dtype in product(BATCHES, DTYPES):
        yield from (one._replace(dtype=dtype, batch=batch) for one in USUAL if one.dimensions < 3)
    yield from (one._replace(benchmark=True) for one in USUAL)


def random_convolutions() -> Iterator[Convolution]:
    """Yield random convolutions, the same ones every time."""
    dice = random.Random(0)
    widths = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 512, 768, 1024)
    for _ in range(DRAWN):
        dimensions = dice.choice((2,) * 8 + (1, 3))
        inner = dice.choice((*widths, 1, 3, 3, 4))
        groups = dice.choice((1,) * 8 + (inner, 2))
        one = Convolution(
            batch=dice.choice((1, 2, 4, 8, 16, 32, 64, 128)),
            inner=inner,
            outer=inner if groups > 1 else dice.choice((*widths, 1, 2, 3, 10, 21)),
            side=dice.choice(SIDES[dimensions]),
            kernel=dice.choice((1, 1, 2, 3, 3, 3, 3, 4, 5, 7)),
            stride=dice.choice((1, 1, 1, 2)),
            groups=groups if inner % groups == 0 else 1,
            dtype=dice.choice(("float32",) * 2 + TYPES),
            last=dimensions > 1 and dice.random() < 0.3,
            dilation=dice.choice((1,) * 9 + (2,)),
            dimensions=dimensions,
            transposed=dice.random() < 0.12,
        )  # fmt: skip
        yield one


def recurrent(dtype: str) -> Iterator[Case]:
    """Yield the recurrent layers of one dtype."""
    for layer, shape in product(LAYERS, SHAPES):
        kind, layers, both, dropout = layer
        way = " both ways" if both else ""
        yield (
            f"{kind} {dtype} {'x'.join(map(str, shape))} layers {layers}{way} dropout {dropout}",
            partial(recurrence, dtype, layer, shape),
        )


def convolution(one: Convolution) -> Any:
    """Run a convolution forward and backward for input and weight."""
    import torch

    dtype = one.dtype.split(",", maxsplit=1)[0]
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    way = formats[one.dimensions] if one.last else torch.contiguous_format
    ends = (one.inner, one.outer) if one.transposed else (one.outer, one.inner)

    def make() -> list[Any]:
        options = {"device": "cuda", "dtype": getattr(torch, dtype)}
        x = torch.randn(one.batch, one.inner, *(one.side,) * one.dimensions, **options)
        window = (one.kernel,) * one.dimensions
        w = torch.randn(ends[0], ends[1] // one.groups, *window, **options)
        return [each.contiguous(memory_format=way).requires_grad_() for each in (x, w)]

    name = f"conv{'_transpose' * one.transposed}{one.dimensions}d"
    convolve = partial(
        getattr(torch.nn.functional, name), stride=one.stride, padding=one.pad,
        groups=one.groups, dilation=one.dilation,
    )  # fmt: skip
    cudnn = torch.backends.cudnn
    with cudnn.flags(
        enabled=True, benchmark=one.benchmark, deterministic=False, allow_tf32=dtype == one.dtype
    ):
        found = requests_by_moment(make, convolve)
    torch.cuda.empty_cache()  # others use the card
    return found


def recurrence(dtype: str, layer: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    """Train a recurrent layer with the batch dimension first."""
    import torch

    kind, layers, both, dropout = layer
    batch, length, inner, hidden = shape

    def make() -> list[Any]:
        options = {"num_layers": layers, "bidirectional": both, "dropout": dropout}
        net = getattr(torch.nn, kind)(inner, hidden, batch_first=True, **options)
        x = torch.randn(batch, length, inner, device="cuda", dtype=getattr(torch, dtype))
        return [net.to("cuda", getattr(torch, dtype)), x.requires_grad_()]

    return requests_by_moment(make, lambda net, x: net(x)[0])
