"""A tensor's allocating lines and its holders in the explorer."""

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.views.explorer.data import explorer_data


def make(names):
    names["kept"] = torch.ones(1 << 20, device="cuda")
    names["again"] = {"it": names["kept"]}
    gone = names["kept"] * 2
    del gone


@pytest.fixture
def lives():
    names = {}
    with virtual.activated("T4"):
        with nbmem.trace("cell", namespace=names, stacks=True) as trace:
            make(names)
        data = explorer_data(trace.report())
    texts, columns = data["texts"], data["lives"]
    assert columns["requested"] == [4 << 20, 4 << 20]
    return [
        {
            "line": texts[columns["line"][row]],
            "stack": [texts[index] for index in columns["stack"][row]],
            "holders": [texts[index] for index in columns["holders"][row]],
        }
        for row in range(2)
    ]


def test_a_tensor_alive_at_the_end_lists_every_path_to_it(lives):
    kept, _ = lives
    assert kept["holders"] == ["kept", "again['it']"]


def test_a_tensor_lists_the_user_lines_that_allocated_it(lives):
    kept, gone = lives
    assert gone["holders"] == []
    lines = [int(one["stack"][0].split(":")[1].split()[0]) for one in lives]
    assert lines[1] - lines[0] == 2
    assert kept["stack"][0] == kept["line"] == f"test_lifetimes.py:{lines[0]} in make"
    assert len(kept["stack"]) >= 2  # behind them stand those of whoever runs the test
    assert all(line.startswith("test_lifetimes.py:") for line in kept["stack"][:2])
