"""The host's memory for the sidebar, to the byte."""

from dataclasses import asdict

import pytest
import torch

from nbmem import virtual
from nbmem.api import tracing
from nbmem.capture.devices.resident_memory import (
    ResidentParts,
    highest_resident_bytes,
    resident_bytes,
)
from nbmem.frontends.sidebar import sample_reader as machine
from nbmem.frontends.sidebar.report_summary import summary
from nbmem.frontends.sidebar.sample_reader import HostReader

WIDE = 1 << 10


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.setattr(machine, "_is_a_card_here", lambda: False)  # whatever this machine has
    return HostReader()


def known_bytes(reader):
    reading = reader.read(tracing.running_recorder().progress())
    assert sum(size for *_, size in reading.by_category) == (
        reading.process if reading.by_category else 0
    )
    return {key: size for key, _, size in reading.by_category if key != "rest"}


def test_a_traced_loop_says_what_the_process_holds(reader):
    model = torch.nn.Linear(WIDE, WIDE)
    optimizer = torch.optim.Adam(model.parameters())
    weights = 4 * (WIDE * WIDE + WIDE)
    with tracing.trace("t", namespace={}):
        for step in range(2):
            loss = model(torch.zeros(8, WIDE)).sum()
            state = {"optimizer_state": 2 * weights + 2 * 4} if step else {}
            assert known_bytes(reader) == {"weights": weights, **state}
            loss.backward()
            assert known_bytes(reader) == {"weights": weights, "gradients": weights, **state}
            optimizer.step()
            state = {"optimizer_state": 2 * weights + 2 * 4}
            assert known_bytes(reader) == {"weights": weights, "gradients": weights, **state}
            optimizer.zero_grad()
            assert known_bytes(reader) == {"weights": weights, **state}


def test_what_the_process_is_of(reader, monkeypatch):
    own = ResidentParts(anonymous=1 << 20, files=2 << 20, shared=1 << 50)
    monkeypatch.setattr("nbmem.capture.devices.host.resident_parts", lambda: own)
    reading = reader.read()
    parts = {key: size for key, _, size in reading.parts}
    assert (parts["files"], parts["shared"]) == (2 << 20, reading.process - (2 << 20))
    monkeypatch.setattr("nbmem.capture.devices.host.resident_parts", lambda: None)
    assert {key for key, *_ in reader.read().parts} <= {"cache"}


def test_the_peak_is_the_cells(reader):
    before_all = highest_resident_bytes()
    reader.begin()
    large = torch.ones(1 << 24)
    before = reader.read()
    assert 0 < before.process <= before.total
    assert abs(before.process - resident_bytes()) < 1 << 26
    del large
    after = reader.read()
    assert after.peak >= max(before.process, after.process)
    assert after.peak_exact == (after.peak > before_all)
    reader.begin()
    now = reader.read()
    assert now.peak < before.process
    assert not now.peak_exact, "the kernel counts the process's peak, which was an earlier cell's"


def test_a_card_that_torch_could_use_comes_first(monkeypatch):
    reader = HostReader()
    monkeypatch.setattr(machine, "_is_a_card_here", lambda: True)
    assert reader.read() is None
    reader = HostReader()
    monkeypatch.setattr(machine, "_is_a_card_here", lambda: False)
    assert reader.read() is not None
    with virtual.activated("L4"):
        assert reader.read() is None


def test_the_host_stands_for_no_accelerator(reader, monkeypatch):
    assert reader.read() is not None
    monkeypatch.setattr(machine, "accelerator_in_use", lambda _torch: object())
    assert reader.read() is None


def test_a_torch_that_is_being_imported_is_left_alone(reader, monkeypatch):
    monkeypatch.setattr(torch.__spec__, "_initializing", True, raising=False)
    monkeypatch.delattr(torch, "xpu")
    assert reader.read() is None


def test_a_torch_without_cuda_has_no_card(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(
        "nbmem.api.device_selection.cards_here", lambda: pytest.fail("nobody need be asked")
    )
    assert not machine._is_a_card_here()


def test_a_report_of_the_host_calls_its_parts_as_the_report_does():
    with tracing.trace("t", namespace={}) as trace:
        torch.nn.Linear(WIDE, WIDE)(torch.zeros(2, WIDE)).sum().backward()
    reading = summary(trace.report(), None, 0.0)
    labels = {key: label for key, label, _ in reading.at_end}
    machine = trace.report().ledger_at_peak.machine
    assert {key: size for key, _, size in reading.parts_at_peak} == {
        key: size for key, size in asdict(machine).items() if size
    }
    assert (labels["context"], labels["free"]) == ("Python and the rest", "available")
