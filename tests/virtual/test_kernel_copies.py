"""Copies and buffers that CUDA kernels make beside their results.

The sizes are those of the oracle (tests/oracle) with torch 2.13 on an H100 80GB.
"""

import pytest
import torch
from torch.nn import functional

from tests.virtual.allocation_history import own_allocations


def image():
    return torch.ones(2, 3, 8, 8, device="cuda", requires_grad=True)


def volume():
    return torch.ones(2, 3, 4, 4, 4, device="cuda", requires_grad=True)


def rows():
    return torch.ones(6, 10, device="cuda", requires_grad=True)


EXPANDED = {
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), image),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 2), image),
    "adaptive_avg_pool2d": (lambda x: functional.adaptive_avg_pool2d(x, 2), image),
    "adaptive_avg_pool2d, channels last": (
        lambda x: functional.adaptive_avg_pool2d(x.to(memory_format=torch.channels_last), 2),
        image,
    ),
    "adaptive_max_pool2d": (lambda x: functional.adaptive_max_pool2d(x, 2), image),
    "fractional_max_pool2d": (lambda x: functional.fractional_max_pool2d(x, 2, 4), image),
    "max_pool3d": (lambda x: functional.max_pool3d(x, 2), volume),
    "avg_pool3d": (lambda x: functional.avg_pool3d(x, 2), volume),
    "nearest": (lambda x: functional.interpolate(x, scale_factor=2), image),
    "bilinear": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), image),
    "bicubic": (lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"), image),
    "trilinear": (lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"), volume),
    "reflect": (lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect"), image),
    "replicate": (lambda x: functional.pad(x, (1, 1, 1, 1), mode="replicate"), image),
    "roll": (lambda x: x.roll((1, 2, 3), (1, 2, 3)), image),
    "nll_loss": (
        lambda x: functional.nll_loss(
            x, torch.zeros(6, dtype=torch.long, device="cuda"), reduction="none"
        ),
        rows,
    ),
    "soft_margin_loss": (
        lambda x: functional.soft_margin_loss(x, torch.ones(6, 10, device="cuda")),
        rows,
    ),
    "logsigmoid": (functional.logsigmoid, rows),
    "silu": (functional.silu, rows),
    "mish": (functional.mish, rows),
    "unfold": (lambda x: x.unfold(1, 4, 2), rows),
    "take": (lambda x: x.take(torch.zeros(5, dtype=torch.long, device="cuda")), rows),
    "clamp": (
        lambda x: x.clamp(torch.zeros(10, device="cuda"), torch.ones(10, device="cuda")),
        rows,
    ),
    "mv": (lambda x: x @ torch.ones(10, device="cuda"), rows),
    "mm": (lambda x: x @ torch.ones(10, 4, device="cuda", requires_grad=True), rows),
    "rms_norm": (lambda x: functional.rms_norm(x, (10,)), rows),
}
FORWARD = {
    "roll": lambda: image().detach().roll((1, 2, 3), (1, 2, 3)),
    "sum of a mask": lambda: torch.zeros(4096, dtype=torch.bool, device="cuda").sum(),
    "mean of halves": lambda: torch.zeros(4096, dtype=torch.half, device="cuda").sum(
        dtype=torch.float32
    ),
    "count_nonzero": lambda: torch.zeros(4096, device="cuda").count_nonzero(),
    "count_nonzero of a mask": lambda: torch.zeros(
        4096, dtype=torch.bool, device="cuda"
    ).count_nonzero(),
    "any of one": lambda: torch.zeros((), device="cuda").any(),
    "logsigmoid": lambda: functional.logsigmoid(rows().detach()),
    "nll_loss of columns": lambda: functional.nll_loss(
        torch.ones(10, 6, device="cuda").T, torch.zeros(6, dtype=torch.long, device="cuda")
    ),
    "max_pool2d of a view": lambda: functional.max_pool2d(
        torch.ones(2, 8, 8, 3, device="cuda")[..., :2].permute(0, 3, 1, 2), 2
    ),
    "avg_pool2d of a view": lambda: functional.avg_pool2d(
        torch.ones(2, 6, 8, 8, device="cuda")[:, ::2], 2
    ),
    "empty product": lambda: (
        torch.ones(6, 0, device="cuda") @ torch.ones(1, device="cuda").expand(0, 4)
    ),
    "baddbmm of expanded batches": lambda: torch.baddbmm(
        torch.ones(1, device="cuda"),
        torch.ones((), device="cuda").expand(2, 3, 4),
        torch.ones((), device="cuda").expand(2, 4, 5),
    ),
}


def weight(*size):
    return torch.ones(*size, device="cuda", requires_grad=True)


DENSE = {
    "unfold, apart": (
        lambda x: functional.unfold(x, 2, stride=2),
        (2, 3, 5, 5),
        [600],
        [384, 600, -384],
    ),
    "unfold, overlapping": (
        lambda x: functional.unfold(x, 2, 2, (1, 2)),
        (2, 3, 5, 5),
        [600, 3360, -600],
        [3360],
    ),
    "fold": (lambda x: functional.fold(x, (5, 5), 2), (2, 12, 16), [1536], [600, 1536, -600]),
    "depthwise conv2d": (
        lambda x: functional.conv2d(x, weight(6, 1, 3, 3), padding=1, groups=6),
        (2, 6, 8, 8),
        [216, 3072],
        [216, 3072],
    ),
    "depthwise conv3d": (
        lambda x: functional.conv3d(x, weight(6, 1, 3, 3, 3), padding=1, groups=6),
        (2, 6, 8, 8, 8),
        [648, 24576],
        [24576, 648],
    ),
    "depthwise conv1d": (
        lambda x: functional.conv1d(x, weight(6, 1, 3), padding=1, groups=6),
        (2, 6, 8),
        [72, 384],
        [72, 384],
    ),
}
BACKWARD_SIZES = {
    "max_pool2d": [1536, 384, -384],
    "avg_pool2d": [1536, 384, -384],
    "adaptive_avg_pool2d": [1536, 96, -96],
    "adaptive_avg_pool2d, channels last": [1536, 1536, -1536],
    "adaptive_max_pool2d": [1536, 96, -96],
    "fractional_max_pool2d": [384, 1536, -384],
    "max_pool3d": [1536, 192, -192],
    "avg_pool3d": [1536, 192, -192],
    "nearest": [1536, 6144, -6144],
    "bilinear": [1536, 6144, -6144],
    "bicubic": [1536, 6144, -6144],
    "trilinear": [1536, 12288, -12288],
    "reflect": [1536, 2400, -2400],
    "replicate": [1536],
    "roll": [1536, 1536, -1536, 1536, 1536, -1536, -1536],
    "nll_loss": [240, 24, -24],
    "soft_margin_loss": [240, 240, 240, -240, -240, 240, -240],
    "logsigmoid": [240],
    "silu": [240],
    "mish": [240],
    "unfold": [240, 80, -80],
    "take": [240],
    "clamp": [4, 60, 60, 240, -60, -60, -4],
    "mv": [240],
    "mm": [160, 96, -96, 240, 96, -96],
    "rms_norm": [240, 240, -240],
}
FORWARD_SIZES = {
    "roll": [1536, 1536, 1536, 1536, -1536, -1536, -1536],
    "sum of a mask": [4096, 8, 32768, -32768, -4096],
    "mean of halves": [8192, 4, -8192],
    "count_nonzero": [16384, 4096, 8, 32768, -32768, -4096, -16384],
    "count_nonzero of a mask": [4096, 8, 32768, -32768, -4096],
    "any of one": [4, 1, 1, -1, -4],
    "logsigmoid": [240, 240, -240],
    "nll_loss of columns": [240, 48, 4, 4, 240, -240, -4, -240, -48],
    "max_pool2d of a view": [1536, 256, 512, 1024, -1024, -512, -1536],
    "avg_pool2d of a view": [3072, 384, 1536, -1536, -3072],
    "empty product": [4, 96, -4],
    "baddbmm of expanded batches": [4, 4, 4, 120, 160, 96, -96, -160, -4, -4, -4],
}


@pytest.fixture(autouse=True)
def _workspaces(gpu):
    """Call the libraries once, so that they have their workspaces."""
    square = torch.ones(8, 8, device="cuda", requires_grad=True)
    (square @ square).sum().backward()


def layouts():
    """Return a batch on the host in two layouts, and one on the card."""
    host, last = torch.ones(2, 4, 16, 16), torch.channels_last
    return host, host.contiguous(memory_format=last), torch.ones(2, 4, 16, 16, device="cuda"), last


def to_card(host, of_last, card, last):
    return {
        "as it is": (host.cuda, [8192]),
        "laid anew": (
            lambda: host.to("cuda", memory_format=last),
            [8192, 8192, -8192],
        ),
        "channels last": (of_last.cuda, [8192]),
        "channels last, of another type": (
            lambda: of_last.to("cuda", torch.half),
            [4096, 4096, -4096],
        ),
        "columns": (host[..., ::2].cuda, [4096]),
        "into channels": (lambda: card[:, :2].copy_(host[:, :2]), [4096, -4096]),
        "into all": (lambda: card.copy_(of_last), []),
    }


def from_card(host, of_last, card, last):
    return {
        "as it is": (card.cpu, []),
        "transposed": (lambda: card.transpose(2, 3).cpu(), []),
        "laid anew": (lambda: card.to("cpu", memory_format=last), []),
        "columns": (card[..., ::2].cpu, [4096, -4096]),
        "from channels": (lambda: host[:, :2].copy_(card[:, :2]), [4096, -4096]),
        "into channels last": (lambda: of_last.copy_(card), []),
    }


@pytest.mark.parametrize("made", [to_card, from_card])
def test_what_is_not_contiguous_on_the_card_passes_through_what_is(made):
    """Between the host and a card one stretch of memory is copied to another."""
    cases = made(*layouts())
    assert {name: own_allocations(copy) for name, (copy, _) in cases.items()} == {
        name: sizes for name, (_, sizes) in cases.items()
    }


@pytest.mark.parametrize("name", FORWARD)
def test_a_call_takes_what_torch_takes(name):
    assert own_allocations(FORWARD[name]) == FORWARD_SIZES[name]


@pytest.mark.parametrize("name", EXPANDED)
def test_a_backward_pass_from_an_expanded_gradient_takes_what_torch_takes(name):
    function, made = EXPANDED[name]
    result = function(made())
    gradient = torch.ones((), device="cuda").expand_as(result)
    assert own_allocations(lambda: result.backward(gradient)) == BACKWARD_SIZES[name]


@pytest.mark.parametrize("name", DENSE)
def test_windows_and_depthwise_convolutions_take_what_torch_takes(name):
    function, size, forward, backward = DENSE[name]
    results = []
    source = torch.ones(size, device="cuda", requires_grad=True)
    assert own_allocations(lambda: results.append(function(source))) == forward
    gradient = torch.ones_like(results[0])
    assert own_allocations(lambda: results[0].backward(gradient)) == backward


def test_pinned_memory_like_a_tensor_of_the_card_is_the_hosts(gpu):
    like = torch.zeros(4, 4, device="cuda")
    made = torch.empty_like(like, device="cpu", pin_memory=True)
    assert (made.device.type, made.is_pinned(), made.size()) == ("cpu", True, (4, 4))


APART = {
    (1, True, True): [4096, 4096, 384, 384, 4096, -384, -4096, 128, -4096],
    (2, True, True): [32768, 32768, 1152, -32768, 1152, 32768, -1152, -32768, 128],
    (3, True, True): [262144, 3456, 262144, 3456, -3456, 262144, -262144, 128, -262144],
    (1, False, True): [4096, 4096, 384, -4096, 128, -4096],
    (2, False, True): [32768, 32768, 1152, -32768, -32768, 128],
    (3, False, True): [3456, 262144, 262144, -262144, 128, -262144],
}
"""By dimensions, and whether input and weight need a gradient; with one of a bias each."""


@pytest.mark.parametrize(("dims", "of_input", "of_weight"), APART)
def test_a_depthwise_convolution_copies_what_lies_apart(dims, of_input, of_weight):
    space, window = (8,) * dims, (3,) * dims
    source = torch.zeros(4, 64, *space, device="cuda")[:, ::2].requires_grad_(of_input)
    weight = torch.zeros(32, 1, *window, 2, device="cuda")[..., 0].requires_grad_(of_weight)
    bias = torch.zeros(32, device="cuda", requires_grad=True)
    convolve = getattr(functional, f"conv{dims}d")
    result = convolve(source, weight, bias, padding=1, groups=32)
    gradient = torch.zeros(*result.size(), 2, device="cuda")[..., 0]
    assert own_allocations(lambda: result.backward(gradient)) == APART[dims, of_input, of_weight]


ONE_PIXEL = {"contiguous": (48, 1, 1, 1), "channels last": (48, 1, 48, 48)}


@pytest.mark.parametrize("of_source", ONE_PIXEL)
@pytest.mark.parametrize("of_gradient", ONE_PIXEL)
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_a_gradient_of_one_pixel_is_copied_unless_it_says_the_inputs_format(
    of_source, of_gradient, transposed
):
    values = torch.zeros(16 * 48, device="cuda")
    source = values.as_strided((16, 48, 1, 1), ONE_PIXEL[of_source]).requires_grad_()
    weight = torch.zeros(48, 48, 1, 1, device="cuda", requires_grad=True)
    convolve = functional.conv_transpose2d if transposed else functional.conv2d
    result = convolve(source, weight)
    gradient = values.as_strided((16, 48, 1, 1), ONE_PIXEL[of_gradient])
    copied = not transposed and of_source != of_gradient
    expected = [3072, 3072, 9216, -3072] if copied else [3072, 9216]
    assert own_allocations(lambda: result.backward(gradient)) == expected
