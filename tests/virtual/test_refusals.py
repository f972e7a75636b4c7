"""What a card's kernels refuse is refused here, in the words of torch 2.13 on a card.

The texts are those of torch's own CUDA build, run without a card.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

CARD = "cuda"


def _ones(*size, dtype=torch.float32):
    return torch.ones(size, dtype=dtype, device=CARD)


def _half(*size):
    return _ones(*size, dtype=torch.float16)


REFUSED = {
    "product of two types": (
        lambda: _ones(4, 4) @ _half(4, 4),
        "expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
    ),
    "layer of another type": (
        lambda: functional.linear(_half(4, 4), _ones(4, 4), _ones(4)),
        "mat1 and mat2 must have the same dtype, but got Half and Float",
    ),
    "batched product of two types": (
        lambda: torch.bmm(_ones(1, 4, 4), _half(1, 4, 4)),
        "expected scalar type Float but found Half",
    ),
    "vector of another type": (
        lambda: torch.mv(_ones(4, 4), _half(4)),
        "addmv input tensors must have the same dtype, but got Half, Float, and Half",
    ),
    "product of integers": (
        lambda: _ones(4, 4).int() @ _ones(4, 4).int(),
        "\"addmm_cuda\" not implemented for 'Int'",
    ),
    "convolution of two types": (
        lambda: functional.conv2d(_ones(1, 1, 4, 4), _half(1, 1, 3, 3)),
        (
            "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be "
            "the same"
        ),
    ),
    "norm of another type": (
        lambda: functional.layer_norm(_half(4, 4), (4,), _ones(4), _ones(4)),
        "expected scalar type Half but found Float",
    ),
    "targets that are not long": (
        lambda: functional.cross_entropy(_ones(4, 4), _ones(4).int()),
        "expected target dtype to be Long or Byte, but got Int",
    ),
    "rows of another type": (
        lambda: _ones(4, 4).index_add_(0, torch.arange(4, device=CARD), _half(4, 4)),
        "index_add_(): self (Float) and source (Half) must have the same scalar type",
    ),
    "attention of two types": (
        lambda: functional.scaled_dot_product_attention(
            *[_ones(1, 1, 4, 4), _half(1, 1, 4, 4), _half(1, 1, 4, 4)]
        ),
        (
            "Expected query, key, and value to have the same dtype, but got query.dtype: float "
            "key.dtype: c10::Half and value.dtype: c10::Half instead."
        ),
    ),
    "input left on the CPU": (
        lambda: torch.nn.LSTM(3, 4, device=CARD)(torch.ones(1, 3, 3)),
        (
            "Input and parameter tensors are not at the same device, found input tensor at cpu and "
            "parameter tensor at cuda:0"
        ),
    ),
    "index that is no integer": (
        lambda: _ones(4, 4)[_half(4)],
        "tensors used as indices must be long, int, byte or bool tensors",
    ),
    "mask of another shape": (
        lambda: _ones(4, 4)[_ones(3, 4) > 0],
        (
            "The shape of the mask [3, 4] at index 0 does not match the shape of the indexed "
            "tensor [4, 4] at index 0"
        ),
    ),
    "shapes that do not broadcast": (
        lambda: _ones(4, 3) + _ones(4, 2),
        "The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 1",
    ),
    "shapes that do not multiply": (
        lambda: functional.linear(_ones(4, 4), _ones(4, 3)),
        "mat1 and mat2 shapes cannot be multiplied (4x4 and 3x4)",
    ),
    "channels that do not fit": (
        lambda: torch.nn.Conv2d(3, 4, 3, device=CARD)(_ones(1, 4, 8, 8)),
        (
            "Given groups=1, weight of size [4, 3, 3, 3], expected input[1, 4, 8, 8] to have 3 "
            "channels, but got 4 channels instead"
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_says_what_it_does_not_take(gpu, name):
    call, text = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError)) as refused:
        call()
    assert str(refused.value) == text
    before = gpu.allocator.allocated
    del refused
    assert gpu.allocator.allocated <= before


def test_autocast_mixes_what_it_casts(gpu):
    with torch.autocast(CARD, torch.bfloat16):
        made = _ones(4, 4) @ _half(4, 4)
    assert made.dtype is torch.bfloat16


def test_the_values_of_an_empty_tensor_are_known(gpu):
    empty = torch.randn(0, 3, device=CARD) > 0
    assert bool(empty.all())
    assert empty.sum().item() == 0
    assert not gpu.notes
