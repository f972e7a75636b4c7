"""Freeing by name where torch runs on the CPU."""

import weakref

import pytest
import torch

import nbmem
from nbmem import virtual


@pytest.fixture
def names(program):
    """Return the names of a program that uses no card."""
    virtual.deactivate()
    return program


def test_what_is_freed_is_measured(names):
    names["twin"] = torch.nn.Linear(256, 256, bias=False)
    names["kept"] = [names["twin"]]
    weight = weakref.ref(names["twin"].weight)
    (first,) = nbmem.free("twin").actions
    assert (first.predicted, first.measured) == (0, 0)
    assert [root.name for root in first.left] == ["kept"]

    freed = nbmem.free("kept")

    assert weight() is None
    assert freed.actions[0].predicted == freed.measured == 4 * 256 * 256
    assert str(freed).startswith("kept: 256.0 KiB freed.\n")  # into no cache of torch's
    assert "reserved" not in str(freed)


def test_a_name_that_holds_nothing(names):
    names["config"] = {"lr": 0.1}
    assert "config: nothing was freed, because it held no memory." in str(nbmem.free("config"))


def test_the_largest_that_live_and_who_holds_them(names):
    model = names["model"] = torch.nn.Linear(256, 256, bias=False)
    names["optimizer"] = torch.optim.SGD(model.parameters(), momentum=0.9)
    names["batch"] = torch.ones(64, 256)
    model(names["batch"]).sum().backward()
    names["optimizer"].step()

    found = nbmem.top()

    mine = {one.name: (one.category.label, one.requested) for one in found.holdings[0]}
    size = 4 * 256 * 256
    assert mine["model.weight"] == ("weights", size)
    assert mine["model.weight.grad"] == ("gradients", size)
    assert mine["batch"] == ("user tensors", 4 * 64 * 256)
    assert sorted(one for one in mine.values() if one[0] == "optimizer state") == [
        ("optimizer state", size)
    ]
    assert str(found).startswith("The host's memory: ")
