"""Writes to views of images and indices, forward and backward.

The figures are the oracle's (tests/oracle), of torch 2.13 on the H100.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.virtual.allocation_history import own_allocations

pytestmark = [
    pytest.mark.skipif(torch.__version__ < (2, 13), reason="the figures are those of torch 2.13"),
    pytest.mark.usefixtures("card"),
]


def learned(*size):
    return torch.ones(*size, device="cuda", requires_grad=True)


def forward(make, *size):
    def prepared():
        x = learned(*size)
        return lambda: make(x)

    return prepared


def backward(make, *size):
    def prepared():
        result = make(learned(*size))
        ones = torch.ones_like(result)
        return lambda: result.backward(ones)

    return prepared


def projected(x):
    return functional.linear(x, learned(5, 4), learned(5))


def written(x):
    """Run a program that continues with the written view."""
    return functional.relu_(projected(x)).exp()


def transposed(x):
    view = (x * 1).view(6, 4).t()
    view.mul_(2)
    return view.exp()


def chosen(x):
    view = (x * 1)[0].view(12)
    view.mul_(2)
    return view.exp()


def taken_again(x):
    """Run a program that takes its view after the write."""
    whole = x * 1
    whole.view(6, 4).mul_(2)
    return whole.view(6, 4).exp()


def retained(x):
    """Run a program that retains the base's gradient."""
    view = functional.relu_(projected(x))
    other = view.reshape(3, 2, 5)
    other.retain_grad()
    return other.exp()


def pixels(mode, *, antialias=False, size=(4, 5)):
    def call(x):
        return functional.interpolate(
            x.permute(0, 3, 1, 2), size=size, mode=mode, antialias=antialias
        )

    return call


def indexed(device, dtype=torch.int64):
    def call(x):
        places = torch.arange(14)
        places = (places[:, None] - places[None] + 13).to(device, dtype)
        return x[places]

    return call


def pooled(dims):
    def call(x):
        pool = getattr(functional, f"max_pool{dims}d")
        return pool((x * 1)[..., ::2], 2)

    return call


def normed(x):
    """Add three gradients, one of them of a norm."""
    y = x * 2
    norm = nn.GroupNorm(1, 16, device="cuda")
    return y.exp() + norm(y) * 3 + y.sin()


CASES = {
    "a view that was written to": (
        backward(written, 2, 3, 4),
        [120, 120, -120, 120, 120, 120, -120, -120, -120, 96, 80, 20, -120],
    ),
    "a view of a view": (
        backward(transposed, 2, 3, 4),
        [96, 96, -96, 96, 96, 96, -96, -96, -96, 96, -96],
    ),
    "a part": (
        backward(chosen, 2, 3, 4),
        [48, 96, -48, 96, 48, 48, -48, -48, -96, 96, -96],
    ),
    "a view behind the write": (
        backward(taken_again, 2, 3, 4),
        [96, 96, 96, 96, -96, -96, -96, 96, -96],
    ),
    "smooth pixels": (
        forward(pixels("bicubic", antialias=True), 1, 6, 6, 16),
        [1280, 1280, 2304, -2304, -1280],
    ),
    "few channels of pixels": (
        forward(pixels("nearest"), 1, 6, 6, 3),
        [240, 240, 432, -432, -240],
    ),
    "gradients of pixels": (
        backward(pixels("bilinear"), 1, 6, 6, 16),
        [2304],
    ),
    "gradients of few channels": (
        backward(pixels("bilinear"), 1, 6, 6, 3),
        [432, 432, 240, -240, -432],
    ),
    "an index on the CPU": (
        backward(indexed("cpu"), 27, 8),
        [864, 1568, 1568, 1568, 1568, 1, -1, -1568, -1568, -1568, -1568],
    ),
    "an index of 32 bits": (
        forward(indexed("cuda", torch.int32), 27, 8),
        [784, 1568, 6272, -1568],
    ),
    "an index of 32 bits, backward": (
        backward(indexed("cuda", torch.int32), 27, 8),
        [
            *(864, 1568, 1568, 1568, -1568, -1568, 1568, 1568, 1568, 1, -1, -1568, -1568),
            *(-1568, -1568),
        ],
    ),
    "an index of 32 bits on the CPU": (
        forward(indexed("cpu", torch.int32), 27, 8),
        [784, 1568, -784, 6272, -1568],
    ),
    "a pool of every other pixel": (
        backward(pooled(2), 2, 8, 8, 8),
        [2048, 2048, -2048, 4096, -2048, 4096, -4096],
    ),
    "a pool of every other voxel": (
        forward(pooled(3), 2, 8, 8, 8, 8),
        [32768, 2048, 4096, 16384, -16384],
    ),
    "a norm among others": (
        backward(normed, 2, 16, 4, 4),
        [
            *(2048, 2048, -2048, 2048, 2048, 64, 64, 128, 128, 8, 8, 128, -8, -8, -128),
            *(-128, -128, -2048, -2048, 2048, -2048, 2048, -2048),
        ],
    ),
}
"""By what is done: what prepares it, and the sizes that it allocates and frees."""


@pytest.mark.parametrize("name", CASES)
def test_a_call_takes_what_it_takes_on_a_card(name):
    prepare, expected = CASES[name]
    assert own_allocations(prepare()) == expected


def test_a_gradient_that_the_program_keeps_keeps_its_memory():
    """It is copied, as on a card; only when it goes is not followed to the end."""
    result = retained(learned(2, 3, 4))
    ones = torch.ones_like(result)
    found = own_allocations(lambda: result.backward(ones))
    assert found.count(120) == 5
