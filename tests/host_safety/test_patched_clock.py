"""Programs that freeze or break `time` are traced like any other."""

import sys
import time

import pytest
import torch

import nbmem.api.tracing as nbmem
from nbmem.core.session.categories import Category

FUNCTIONS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


def stopped(function):
    now = function()
    return lambda: now


def broken(_function):
    def raises():
        raise OSError("there is no time")

    return raises


@pytest.mark.parametrize("instead", [stopped, broken])
@pytest.mark.usefixtures("card")
def test_the_time_is_nbmems_own(monkeypatch, instead):
    """As freezegun does it: in `time`, and in every module that holds the function by a name."""
    model = torch.nn.Linear(64, 64).cuda()
    with nbmem.trace("t", namespace={}) as t, monkeypatch.context() as patched:
        for name in FUNCTIONS:
            real = getattr(time, name)
            for module in tuple(sys.modules.values()):
                if module is not None and vars(module).get(name) is real:
                    patched.setattr(module, name, instead(real))
        for _ in range(3):
            model(torch.ones(64, 64, device="cuda")).sum().backward()
        kept = torch.ones(1 << 20, device="cuda")
    assert kept.is_cuda
    report = t.report()
    assert report.ledger_at_end[Category.USER_TENSORS] >= 4 << 20
    assert not report.ledger_at_end[Category.UNKNOWN]
    assert [phase.name for phase in report.phases].count("backward") == 3
    assert report.duration_ns > 0
    assert not [note for note in report.notes if "OSError" in note]
