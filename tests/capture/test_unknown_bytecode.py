"""Recording on a Python whose bytecode is unknown."""

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.core.runtime import self_test
from nbmem.views.text import render_text

pytestmark = pytest.mark.torch


@pytest.fixture
def unknown(monkeypatch):
    """Rename the instructions, so that no reading works."""
    monkeypatch.setattr(self_test, "_losses", {})
    for use, loses, where in (
        (
            "recording",
            "tell when zero_grad() runs",
            "nbmem.capture.patches.method_patches.calls_at_once",
        ),
        ("recording", "see changed weights", "nbmem.capture.hooks.data_writes.writes_at_once"),
        ("virtual card", "tell a check", "nbmem.virtual.tensors.values.healthy_answer"),
    ):
        tried = self_test.self_tested(use, loses, None, {"probe.data": 1})
        monkeypatch.setattr(where, tried(lambda _code, _place: 1 / 0))
        self_test._losses[where] = self_test._losses.pop("<lambda>")


def train_and_check(model, optimizer):
    for _ in range(2):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if (torch.randn(64, device="cuda") > 9).any():  # answered as without any reading
        raise AssertionError


def test_a_recording_goes_on_without_what_it_cannot_read(unknown):
    with virtual.activated("T4") as gpu:
        with pytest.warns(virtual.NbmemWarning, match="tell a check"):
            model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with nbmem.trace("cell", namespace={"model": model}) as trace:
            train_and_check(model, optimizer)
    report = trace.report()
    phases = {row.name for row in report.phases}
    assert {"forward", "backward", "optimizer"} <= phases
    assert "zero_grad" not in phases
    for note in self_test.losses("recording"):
        assert report.notes.count(note) == 1
        assert " ".join(note.split()[:6]) in render_text(report)
    assert len(self_test.losses("recording")) == 2
    assert [gpu.notes.count(note) for note in self_test.losses("virtual card")] == [1]
