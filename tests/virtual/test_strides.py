"""Strides of results where torch's rules and kernels differ.

The strides are those of torch 2.13's own CUDA code (tests/oracle).
"""

# ruff: noqa: FBT003 - arguments as the operators have them
import pytest
import torch

aten = torch.ops.aten
BY_ROWS, BY_COLUMNS = (4, 1), (1, 3)


def matrix(order, dtype):
    whole = torch.full((3, 4), 0.5, device="cuda", dtype=dtype)
    return whole if order == BY_ROWS else whole.t().contiguous().t()


FIRST = {
    "softplus": lambda g, x: aten.softplus_backward(g, x, 1, 20),
    "elu": lambda g, x: aten.elu_backward(g, 1, 1, 1, False, x),
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardswish": aten.hardswish_backward,
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, 0, 1),
    "logit": lambda g, x: aten.logit_backward(g, x, 0.1),
    "mish": aten.mish_backward,
    "silu": aten.silu_backward,
    "xlogy": aten.xlogy,
    "copysign": aten.copysign,
}
SECOND = {
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0),
    "binary_cross_entropy": lambda g, x: aten.binary_cross_entropy_backward(g, x, g),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*FIRST, *SECOND])
def test_a_result_lies_as_what_its_kernel_reads_first(gpu, name, dtype):
    made = FIRST.get(name) or SECOND[name]
    for orders in ((BY_ROWS, BY_COLUMNS), (BY_COLUMNS, BY_ROWS)):
        result = made(*(matrix(order, dtype) for order in orders))
        assert result.stride() == orders[name in SECOND]


def test_a_loss_gives_its_gradient_by_rows(gpu):
    tensors = [matrix(BY_COLUMNS, torch.float32) for _ in range(3)]
    assert aten.mse_loss_backward(*tensors, 0).stride() == BY_ROWS


def test_an_index_that_is_a_row_already_is_not_copied(gpu):
    table = torch.ones(20, 16, device="cuda")
    boxes = torch.ones(2, 32, 4, dtype=torch.long, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = torch.nn.functional.embedding(boxes[:, :, 0], table)
    assert torch.cuda.max_memory_allocated() - before == found.numel() * 4
