"""Bilinear layers take two products for each output feature."""

import pytest
import torch

from tests.virtual.allocation_history import own_allocations


def test_each_output_feature_takes_two_products(gpu):
    layer = torch.nn.Bilinear(4, 6, 3).cuda()
    one, two = (torch.ones(8, n, device="cuda", requires_grad=True) for n in (4, 6))
    layer(one, two)  # the workspace of cuBLAS
    sizes = own_allocations(lambda: layer(one, two))
    assert sizes == [96, *[192, 32, -192, -32] * 3, 96, -96]


@pytest.mark.parametrize("size", [(8,), (2, 3), (0,)])
def test_shapes_are_those_of_the_cpu(gpu, size):
    layer = torch.nn.Bilinear(4, 6, 3)
    found = []
    for device in ("cpu", "cuda"):
        layer = layer.to(device)
        one, two = (torch.ones(*size, n, device=device, requires_grad=True) for n in (4, 6))
        result = layer(one, two)
        gradients = torch.autograd.grad(result.sum(), (one, two, layer.weight))
        found.append([t.shape for t in (result, *gradients)])
    assert found[0] == found[1]
