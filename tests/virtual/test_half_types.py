"""Half types and converting copies: sizes in order.

The figures are the oracle's (tests/oracle), of torch 2.13 on the H100.
"""

# ruff: noqa: FBT003 - arguments as the operators have them
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.virtual.allocation_history import own_allocations
from tests.virtual.test_value_dependent_operators import backward, forward

pytestmark = [
    pytest.mark.skipif(torch.__version__ < (2, 13), reason="the figures are those of torch 2.13"),
    pytest.mark.usefixtures("card"),
]
HALF = torch.bfloat16
flash = torch.ops.aten._flash_attention_forward


def some(*size, learned=False):
    return torch.ones(size, dtype=HALF, device="cuda").requires_grad_(learned)


def starts(*lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32, device="cuda").cumsum(0).int()


def attended(*sizes, texts=(), longest=(0, 0), dropout=0.0):
    """Run attention by name, or its backward from ones."""

    def call(learned):
        query, key, value = (some(*size, learned=learned) for size in sizes)
        places = [starts(*lengths) for lengths in texts] or [None, None]
        return lambda: flash(query, key, value, *places, *longest, dropout, True, False)

    return call


def attended_back(*sizes, **options):
    def prepared():
        result = attended(*sizes, **options)(learned=True)()[0]
        ones = torch.ones_like(result)
        return lambda: result.backward(ones)

    return prepared


def attended_forward(*sizes, **options):
    return lambda: attended(*sizes, **options)(learned=False)


def plainly(key_heads=4, *, learned=False, **options):
    """Run attention by products."""

    def prepared():
        query = some(2, 4, 3, 8, learned=learned)
        key, value = (some(2, key_heads, 7, size, learned=learned) for size in (8, 16))

        def call():
            with sdpa_kernel(SDPBackend.MATH):
                return functional.scaled_dot_product_attention(query, key, value, **options)

        return call

    return prepared


def brought(make, **options):
    """Copy a tensor of the CPU to the card."""
    return lambda: lambda: make().to("cuda", **options)


def fetched(make, **options):
    def prepared():
        tensor = make(torch.ones(4, 6, 100, device="cuda"))
        return lambda: tensor.to("cpu", **options)

    return prepared


def alone():
    return torch.ones(4, 6, 100)


DENSE = (2, 300, 4, 72), (2, 130, 2, 72), (2, 130, 2, 72)
TEXTS = (300, 4, 168), (130, 2, 168), (130, 2, 168)
STEP = (2, 8, 64), (1300, 2, 64), (1300, 2, 64)
UNEQUAL = {"texts": ((100, 200), (70, 60)), "longest": (200, 70)}
CASES = {
    "a transform of several dimensions keeps what it was promoted to": (
        forward(lambda x: torch.fft.hfft2(x.half(), (2, 2)), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        [12, 24, 16, 16, -16, 16, 8, 16, -16, -16, -16, -24, -12],
    ),
    "a transform of one number": (
        backward(lambda x: torch.fft.irfft2(x.half(), (1, 2)), [[1.0, 2.0]]),
        [8, 8, 8, -8, -8, 8, -8],
    ),
    "flash cuts the keys of few queries": (
        attended_forward(*DENSE, longest=(300, 130)),
        [345600, 9600, 19200, 1843200, 16, 8, -19200, -1843200],
    ),
    "flash with a dropout": (
        attended_forward(*DENSE, longest=(300, 130), dropout=0.1),
        [345600, 9600, 16, 8, 16, -16],
    ),
    "flash, backward": (
        attended_back(*DENSE, longest=(300, 130)),
        [
            *(345600, 74880, 74880, 12288, 1179648, 149760, 149760, -149760, -149760),
            *(-1179648, -12288),
        ],
    ),
    "flash of unequal texts, backward": (
        attended_back(*TEXTS, **UNEQUAL),
        [
            *(403200, 87360, 87360, 8896, 1708032, 174720, 174720, -174720, -174720),
            *(-1708032, -8896),
        ],
    ),
    "flash of one query for each text": (
        attended_forward(*STEP, texts=((1, 1), (700, 600)), longest=(1, 700)),
        [2048, 2048, 64, 192, 12288, 16, 8, 2048, -2048, 2048, -12288, -192, -2048, -2048],
    ),
    "products of grouped queries": (
        plainly(2, is_causal=True, enable_gqa=True),
        [
            *(768, 896, 1792, 768, 21, 21, -21, 4, 4, 84, -4, -4, -21, 1792, 3584, 1792),
            *(672, -1792, 672, 168, 24, 4, -4, -24, -168, -672, 336, 1536, 768, -1536),
            *(-672, -1792, -3584, -768, -84, -1792, -896, -768, -336),
        ],
    ),
    "products that learn": (
        plainly(is_causal=True, learned=True),
        [
            *(768, 1792, 3584, 768, 21, 21, -21, 4, 4, 84, -4, -4, -21, 1792, 672, 672),
            *(168, 24, 4, -4, -24, -168, -672, 336, 1536, 768, -1536, -84, -1792, -768),
            -336,
        ],
    ),
    "a copy that converts on the card": (
        brought(alone, dtype=HALF, non_blocking=True),
        [4800, 9600, -9600],
    ),
    "a copy that converts on the CPU": (
        brought(alone, dtype=HALF),
        [4800],
    ),
    "a converted copy that leaves": (
        fetched(lambda t: t.transpose(0, 1), dtype=HALF, non_blocking=True),
        [4800, 4800, -4800, -4800],
    ),
    "norms of a list in another type": (
        forward(lambda x: torch._foreach_norm([x.to(HALF)], -2, torch.float64), [1.0, 2.0]),
        [4, 8, 16, -16, -4],
    ),
}
"""By what is done: what prepares it, and the sizes that it allocates and frees."""


@pytest.mark.parametrize("name", CASES)
def test_a_call_takes_what_it_takes_on_a_card(name):
    prepare, expected = CASES[name]
    assert own_allocations(prepare()) == expected


def test_what_is_expanded_takes_the_other_ones_strides():
    """Torch's rule would copy the half type into float32 first, and lose them."""
    assert (some().expand(2, 3) * some(3, 2).t()).stride() == (1, 2)
    assert torch.where(some(3, 2).t() > 0, some().expand(2, 3), 1.0).stride() == (1, 2)


def test_a_switch_behind_a_call_changes_the_next_one():
    query, key, value = (some(*size, learned=True) for size in DENSE)
    result = flash(query, key, value, None, None, 300, 130, 0.0, True, False)[0]
    ones = torch.ones_like(result)
    before = own_allocations(lambda: result.backward(ones, retain_graph=True))
    torch.use_deterministic_algorithms(True)
    try:
        after = own_allocations(lambda: result.backward(ones, retain_graph=True))
    finally:
        torch.use_deterministic_algorithms(False)
    copies = -(-132 // (2 * 4))
    assert max(after) == copies * max(before)


def test_a_convolution_has_a_precision_of_its_own():
    """Torch refuses the old question once it is not that of recurrent layers."""
    conv = getattr(torch.backends.cudnn, "conv", None)
    image, weight = torch.ones(2, 3, 8, 8, device="cuda"), torch.ones(4, 3, 3, 3, device="cuda")
    before = conv.fp32_precision
    conv.fp32_precision = "ieee"
    try:
        assert functional.conv2d(image, weight).shape == (2, 4, 6, 6)
    finally:
        conv.fp32_precision = before
