"""Tensors inside of wrapper subclasses get the wrapper's category."""

import pytest
import torch
from torch import nn

from nbmem import virtual
from nbmem.capture.tensors.optimizers import state_of_optimizer
from nbmem.capture.tensors.tensors import observe_parts, storages_of_module
from nbmem.core.session.categories import Category


class Wrapped(torch.Tensor):
    """A quantized tensor as torchao makes it: codes and a scale."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, dtype=torch.bfloat16, device=codes.device
        )

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:  # as a parameter is made
            return cls(args[0].codes, args[0].scale)
        raise AssertionError(f"{func} was asked of a wrapper")


@pytest.fixture
def wrapped():
    with virtual.activated("T4"):
        codes = torch.zeros(64, 8, dtype=torch.uint8, device="cuda")
        yield Wrapped(codes, torch.ones(64, device="cuda"))


def labels_of(found):
    return [(seen.category, seen.name) for seen in found]


def test_a_wrapped_weight_is_a_weight(wrapped):
    module = nn.Module()
    module.register_parameter("weight", nn.Parameter(wrapped, requires_grad=False))
    assert labels_of(storages_of_module(module)) == [
        (Category.WEIGHTS, ".weight.codes (64, 8) uint8"),
        (Category.WEIGHTS, ".weight.scale (64,) float32"),
    ]


def test_wrapped_state_is_state(wrapped):
    parameter = nn.Parameter(torch.zeros(64, 8, device="cuda"))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter]["exp_avg"] = wrapped
    assert labels_of(state_of_optimizer(optimizer)) == [
        (Category.OPTIMIZER_STATE, ".state[0]['exp_avg'].codes (64, 8) uint8"),
        (Category.OPTIMIZER_STATE, ".state[0]['exp_avg'].scale (64,) float32"),
    ]


def test_wrappers_that_hold_each_other_end(wrapped):
    wrapped.codes = wrapped
    assert (
        labels_of(observe_parts(wrapped, Category.WEIGHTS, "w"))[-1][1] == "w.scale (64,) float32"
    )
