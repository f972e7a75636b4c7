"""Refresh of gradients once a backward, quickly where unchanged."""

import pytest
import torch
from torch import nn

from nbmem import virtual
from nbmem.capture.devices.host import Host
from nbmem.capture.tensors.active_registry import activate_registry
from nbmem.capture.tensors.gradient_refresh import gradient_reader
from nbmem.capture.tensors.storage_registry import StorageRegistry
from nbmem.capture.tensors.tensors import observe
from nbmem.core.session.categories import Category

SIZE = 1 << 18
pytestmark = pytest.mark.usefixtures("card")


@pytest.fixture
def met():
    """Return a parameter with a gradient, and its observation."""
    parameter = nn.Parameter(torch.zeros(SIZE, device="cuda"))
    parameter.grad = torch.zeros_like(parameter)
    seen = observe(parameter.grad, Category.GRADIENTS, "weight.grad")
    assert seen is not None
    return parameter, seen


def test_a_gradient_that_is_where_it_was_is_the_same(met):
    parameter, seen = met
    assert gradient_reader()(parameter, seen) is seen


def test_a_gradient_that_is_elsewhere_has_all_but_its_address(met):
    parameter, seen = met
    kept, parameter.grad = parameter.grad, torch.ones_like(parameter)
    found = gradient_reader()(parameter, seen)
    assert found == observe(parameter.grad, Category.GRADIENTS, "weight.grad")
    assert found.addr != seen.addr
    del kept


def _in_a_bucket(parameter):
    return torch.zeros(2 * SIZE, device="cuda")[:SIZE]


def _sparse(parameter):
    return torch.zeros_like(parameter).to_sparse()


@pytest.mark.parametrize("make", [_in_a_bucket, _sparse, lambda parameter: None])
def test_a_changed_gradient_is_read_in_full(met, make):
    parameter, seen = met
    parameter.grad = make(parameter)
    assert gradient_reader()(parameter, seen) is None


def test_a_gradient_on_another_card_is_read_in_full(met):
    _, seen = met
    with virtual.activated("2xT4"):
        parameter = nn.Parameter(torch.zeros(SIZE, device="cuda:1"))
        parameter.grad = torch.zeros_like(parameter)
        assert gradient_reader()(parameter, seen) is None


def test_a_registry_recognizes_a_gradient_again():
    parameter = nn.Parameter(torch.zeros(SIZE))
    registry = StorageRegistry(torch, Host())
    with activate_registry(registry):
        parameter.grad = torch.zeros_like(parameter)
        seen = observe(parameter.grad, Category.GRADIENTS, ".weight.grad")
        assert gradient_reader()(parameter, seen) is seen
        first = parameter.grad
        parameter.grad = torch.ones_like(parameter)
        again = gradient_reader()(parameter, seen)
    assert again.addr == parameter.grad.data_ptr() != first.data_ptr()
    assert registry.live_bytes == {0: 2 * seen.size}
