"""Errors of CUDA kernels, in the words of torch 2.13.

The texts are those of torch's own CUDA build, run without a card.
"""

import pytest
import torch
from torch.nn import functional

CARD = "cuda"


def _ones(*size, dtype=torch.float32):
    return torch.ones(size, dtype=dtype, device=CARD)


def _half(*size):
    return _ones(*size, dtype=torch.float16)


def _moved(x):
    return x[1:].copy_(x[:-1])


def _written_beside(x):
    return torch.add(x[:2], 1, out=x[1:3])


def _joined_into_itself(x):
    return torch.cat([x, _ones(4)], out=x)


SEVERAL = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location. Please clone() the tensor before performing the operation."
)
SHARED = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
    "single memory location. Please clone() the tensor before performing the operation."
)
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
    "elements of an expanded tensor, one by one": (
        lambda: _ones(3).expand(3, 3).add_(1),
        SEVERAL,
    ),
    "elements of an expanded result": (
        lambda: torch.take(_ones(6), torch.arange(3, device=CARD), out=_ones(1).expand(3)),
        SEVERAL,
    ),
    "a tensor that is moved over itself": (
        lambda: _moved(_ones(4)),
        SHARED,
    ),
    "a sum that is written beside its input": (
        lambda: _written_beside(_ones(4)),
        SHARED,
    ),
    "a result that is an input": (
        lambda: _joined_into_itself(_ones(0)),
        SHARED,
    ),
    "a number that its type does not hold": (
        lambda: torch.full((2,), 1 << 63, device=CARD),
        "value cannot be converted to type int64_t without overflow",
    ),
    "a probability of two": (
        lambda: _ones(3).bernoulli_(2.0),
        "bernoulli_ expects p to be in [0, 1], but got p=2",
    ),
    "more draws than there are": (
        lambda: torch.multinomial(_ones(3), 4),
        "cannot sample n_sample > prob_dist.size(-1) samples without replacement",
    ),
    "a kernel without distance": (
        lambda: functional.conv1d(_ones(1, 1, 4), _ones(1, 1, 2), dilation=0),
        "dilation should be greater than zero",
    ),
    "bytes as a mask": (
        lambda: _ones(3).masked_scatter(_ones(3, dtype=torch.uint8), _ones(3)),
        "masked_scatter_ only supports boolean masks, but got mask with dtype unsigned char",
    ),
    "boundaries in two dimensions": (
        lambda: torch.bucketize(_ones(3), _ones(2, 2)),
        "boundaries tensor must be 1 dimension, but got dim(2)",
    ),
    "weights of classes in another type": (
        lambda: functional.nll_loss(_ones(3, 4), torch.arange(3, device=CARD), _half(4)),
        "expected scalar type Float but found Half",
    ),
    "a table of embeddings in three dimensions": (
        lambda: functional.embedding(torch.arange(3, device=CARD), _ones(3, 4, 5)),
        "'weight' must be 2-D",
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


def test_memory_that_is_written_twice_as_a_card_does_is_written(gpu):
    x = _ones(6)
    assert torch.add(x, 1, out=x) is x
    x[:3].copy_(x[3:])
    torch.cumsum(x, 0, out=x)
    assert _ones(1, 3).expand(3, 3).fill_(2).size() == (3, 3)
    pairs = x.view(2, 3)
    pairs[0].add_(pairs[1])
    assert not gpu.notes


def test_a_range_that_was_refused_once_refuses_no_other(gpu):
    with pytest.raises(RuntimeError, match="expects to return"):
        _ones(3).uniform_(3.0, -1.0)
    assert _ones(3).uniform_(0.0, 1.0).size() == (3,)
