"""The cost of a trace in calls of Python functions."""

import gc
import sys

import pytest
import torch
from torch import nn

import nbmem.api.tracing as nbmem
from nbmem import virtual


def calls(work):
    """Return how many functions a piece of work calls."""
    count = 0

    def profile(_frame, event, _arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def traced(namespace, work):
    """Trace some steps of a tiny model beside what a notebook has, and show the report."""

    def cell():
        with nbmem.trace("cell", namespace=namespace) as t:
            work()
        t._repr_mimebundle_()

    cell()  # the first trace of a model learns what it is made of
    gc.collect()  # or modules of the measurement before are still alive
    return calls(cell)


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Run on the CPU, or on a virtual card."""
    if request.param == "cpu":
        yield "cpu"
        return
    with virtual.activated("T4"):
        yield "cuda"


IDLE = {"cpu": 72, "cuda": 255}
"""Calls for each idle module of two parameters in a traced cell, its report included: 1,300 once.
On the CPU they are 31, 57 once the compiler has loaded FSDP, as modules may be wrapped then, and 63
behind many other tests.
On a virtual card most of them are the card's, which writes a block of each into its snapshots."""


def test_modules_that_merely_exist_cost_little(device, monkeypatch):
    monkeypatch.setattr("nbmem.capture.record.recorder.matters", lambda *_: False)
    # How often the report is thinned until a notebook may keep it depends on the times in it.
    monkeypatch.setattr("nbmem.views.mime_bundle.MAX_CHARACTERS", 1 << 30)
    monkeypatch.setattr("nbmem.views.mime_bundle.SAVED", 1 << 30)

    def beside(count):
        idle = nn.ModuleList(nn.Linear(2, 2, device=device) for _ in range(count))
        used = nn.Linear(4, 4, device=device)

        def work():
            used(torch.ones(1, 4, device=device)).sum().backward()

        return traced({"idle": idle, "used": used}, work)

    few, many = beside(600), beside(1_000)  # of 800 tensors a report tells one by one
    assert (many - few) / 400 <= IDLE[device]
