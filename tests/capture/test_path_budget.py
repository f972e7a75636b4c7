"""Limits on the search for tensors in a function's variables."""

import builtins
import types

import pytest
import torch

from nbmem.capture.tensors.frames import report_modules
from nbmem.capture.tensors.tensor_paths import MAX_OF_ONE, Budget, reachable_tensors
from nbmem.capture.tensors.tensors import NameCallbacks, in_frames

DATA = {"samples": [(f"{i}.jpg", i) for i in range(100_000)]}
MESS = {"samples": [[i] for i in range(100_000)]}


def test_half_is_kept_for_those_to_come():
    budget, given = Budget(100), []
    for share in budget.shares(5):
        given.append(share.left)
        share.left = 0  # each takes all that it may
    assert given == [60, 10, 10, 10, 10]
    budget = Budget(100)
    assert [share.left for share in budget.shares(5)] == [60, 70, 80, 90, 100]


def test_a_long_list_costs_what_is_looked_at():
    budget = Budget()
    assert list(reachable_tensors(list(DATA.items()), budget)) == []
    assert 10_000 - budget.left == 1 + MAX_OF_ONE // 16  # rows of plain values lead nowhere


@pytest.mark.parametrize("data", [DATA, MESS], ids=["rows", "lists"])
def test_a_callers_modules_are_found_behind_a_data_set(data):
    net, seen = torch.nn.Linear(2, 2), []
    running = [(f" of inner{i}()", {"data": data}) for i in range(3)]
    outer = (" of run()", {"nets": [net], "held": torch.ones(3)})
    report_modules([*running, outer], lambda way, module: seen.append((way, module)))
    assert seen == [("local nets[0] of run()", net)]
    ways, called = [], []
    names = NameCallbacks(
        module=lambda way, _: ways.append(way), call=lambda name, _: called.append(name)
    )
    list(in_frames([*running, outer], names))
    assert (ways, called) == (["local nets[0] of run()"], ["local held of run()"])


def test_a_modules_names_are_no_path_of_what_keeps_them():
    held = torch.ones(2)
    names = {"launch": types.SimpleNamespace(), "held": held}
    names["__builtins__"] = builtins
    names["launch"].__globals__ = names  # as a kernel of Triton's keeps those of its function
    assert [name for name, _ in reachable_tensors(list(names.items()))] == ["held"]
