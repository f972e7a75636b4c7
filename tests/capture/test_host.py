"""Training on the CPU: a ledger of observed tensors."""

import gc
import time
from mmap import mmap

import pytest
import torch
from torch import nn

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.allocator.recordings.replay import replay
from nbmem.capture.devices.host import FRESH_NS, Host
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.capture.record.time_budget import ALWAYS, GRACE_S, SHARE, TimeBudget
from nbmem.capture.tensors.active_registry import activate_registry, active_registry
from nbmem.capture.tensors.storage_registry import ALIVE, StorageRegistry
from nbmem.capture.tensors.tensors import observe
from nbmem.core.errors import UsageError
from nbmem.core.session.categories import Category
from nbmem.views.charts.card_bar import card_bar
from nbmem.views.charts.timeline import timeline
from nbmem.views.html import render_html
from nbmem.views.text import render_text
from tests.fake_clock import put_clock

C, MIB = Category, 1 << 20
WEIGHTS = 4 * (256 * 512 + 512 + 512 * 64 + 64)
INPUT, HIDDEN, OUTPUT = 4 * 32 * 256, 4 * 32 * 512, 4 * 32 * 64


def network():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64))


def train(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(32, 256)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def rows(report, name):
    return [row for row in report.phases if row.name == name]


@pytest.fixture(scope="module", autouse=True)
def _time_to_look():
    """Lift the time budget, so that no step is skipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbmem.capture.record.time_budget.GRACE_S", 60)
        yield


@pytest.fixture(scope="module")
def trained():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    trace = nbmem.trace("train", namespace={"model": model, "optimizer": optimizer})
    with trace:
        train(model, optimizer, 3)
    return trace


def test_every_phase_to_the_byte(trained):
    report = trained.report()
    steps = 4 * 4  # Adam's count of steps for each parameter, on the CPU
    assert report.peak.at.phase == "optimizer"
    assert [p.name for p in report.phases if p.step == 1] == [
        "input", "forward", "backward", "optimizer", "zero_grad",
    ]  # fmt: skip
    for step, row in enumerate(rows(report, "optimizer")):
        held = row.ledger_at_end
        assert row.step == step
        assert held[C.WEIGHTS] == held[C.GRADIENTS] == WEIGHTS
        assert held[C.OPTIMIZER_STATE] == 2 * WEIGHTS + steps
        assert held[C.INPUTS] == INPUT
        assert held[C.UNKNOWN] == held[C.ROUNDING] == 0
    if why_unreadable() is None:
        for row in rows(report, "forward"):  # ReLU's result, which the second layer saves, too
            held = row.ledger_at_end[C.ACTIVATIONS]
            assert held - (HIDDEN + OUTPUT) in {0, 4}  # the loss, where variables were looked at
    for row in rows(report, "zero_grad"):
        assert row.ledger_at_end[C.GRADIENTS] == 0


def test_the_pictures_show_no_allocator(trained):
    report = trained.report()
    drawn = timeline(report)
    assert "changes seen" in drawn.svg
    assert "available " in card_bar(report).svg
    assert "reserved" not in drawn.svg + drawn.alt


def test_the_ledger_is_that_of_the_process(trained):
    report = trained.report()
    for ledger in (report.ledger_at_start, report.ledger_at_peak, report.ledger_at_end):
        ledger.check()
        assert ledger.total_bytes == report.device.total_bytes
    assert report.device.is_host
    assert report.peak.allocated == report.ledger_at_peak.allocated == report.peak.reserved
    assert report.peak.process > report.peak.allocated
    assert report.findings == ()


def test_what_is_missing_is_said_once(trained):
    assert sum("keeps no history" in note for note in trained.report().notes) == 1


def test_the_report_uses_the_words_of_host_memory(trained):
    report = trained.report()
    text, page = render_text(report), render_html(report)
    assert "fits this machine's memory with " in text.splitlines()[0]
    assert "on the host's memory (" in text
    assert " changes seen" in text
    for word in ("= tensors", "= machine", "Python and the rest", "available"):
        assert word in text
    for word in ("reserved", "context and libraries", "nvidia-smi", "allocator event"):
        assert word not in text
    assert "of the machine" in page
    assert "peak reserved" not in page


def test_a_saved_recording_says_the_same(trained, tmp_path):
    found = nbmem.open(trained.save(tmp_path / "host")).report()
    assert found.device == trained.report().device
    assert found.ledger_at_peak == trained.report().ledger_at_peak


def test_there_is_nothing_to_replay(trained, tmp_path):
    with pytest.raises(UsageError, match="keeps no history: there is nothing to replay"):
        replay(trained.save(tmp_path / "host"))


def test_names_are_those_of_the_notebook(trained):
    names = {held.name for held in trained.report().holdings}
    assert "model.0.weight (512, 256) float32" in names
    assert "model.0.weight: exp_avg (512, 256) float32" in names


def test_a_card_that_comes_up_meanwhile_is_what_matters():
    with virtual.activated("T4"), nbmem.trace("late", namespace={}) as t:
        on_host = torch.ones(1 << 20)
        on_card = torch.ones(1 << 20, device="cuda")
    report = t.report()
    assert report.device.kind == "cuda"
    assert report.peak.allocated == 4 << 20
    del on_host, on_card


def test_an_initialized_card_that_holds_nothing_is_ignored():
    """As on a machine with a card, whose stream an optimizer asks for wherever it trains."""
    model = network()
    with virtual.activated("T4") as card:
        card.chosen = False
        torch.cuda.init()
        with nbmem.trace("train", namespace={"model": model}) as trace:
            train(model, torch.optim.SGD(model.parameters()), 2)
        assert torch.cuda.is_initialized()
        assert trace.report().device.is_host
        assert rows(trace.report(), "forward")[-1].ledger_at_end[C.WEIGHTS] == WEIGHTS


class Renewed(nn.Module):
    """Puts new memory in the place of what it has, at each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1 << 18))

    def forward(self, x):
        self.mean = self.mean + x
        return self.mean * 2


def test_the_call_that_finds_a_card_used_sees_what_is_on_it():
    """As in the first cell that trains in a kernel on a machine with a card."""
    with virtual.activated("T4") as card:
        card.chosen = False
        with nbmem.trace("first", namespace={}) as trace:
            model = Renewed().cuda()
            model(torch.ones(1 << 18, device="cuda", requires_grad=True)).sum().backward()
        (load,) = rows(trace.report(), "load")
        assert load.ledger_at_end[C.BUFFERS] == MIB
        assert load.ledger_at_end[C.UNKNOWN] == 0


def test_no_storage_is_registered_outside_of_a_trace(trained):
    assert trained.session is not None
    assert active_registry() is None
    assert observe(torch.ones(3), C.USER_TENSORS, "x") is None


def test_a_fault_costs_the_registry_alone(monkeypatch):
    model = network()
    with nbmem.trace("broken", namespace={"model": model}) as t:
        monkeypatch.setattr(StorageRegistry, "sweep", lambda *_: 1 / 0)
        train(model, torch.optim.SGD(model.parameters()), 2)
    assert t.session.devices == ()
    assert sum("ZeroDivisionError" in note for note in t.session.notes) == 1


# --- the roll


def registry_of(*tensors):
    registry = StorageRegistry(torch, Host())
    with activate_registry(registry):
        for tensor in tensors:
            observe(tensor, C.USER_TENSORS, "x")
    return registry


def test_a_storage_is_followed_until_it_is_gone():
    x, y = torch.ones(256), torch.ones(512)
    view = y[:3]
    registry = registry_of(x, y, view)
    assert registry.live_bytes == {0: 3072}
    del x, y
    registry.sweep(1)
    assert registry.live_bytes == {0: 2048}
    assert list(registry.columns.freed_at) == [1, ALIVE]
    del view
    registry.sweep(2)
    assert registry.live_bytes == {0: 0}
    assert list(registry.columns.freed_at) == [1, 2]


def test_the_registry_keeps_no_tensor_alive():
    x = torch.ones(256)
    registry = registry_of(x)
    watch = x.untyped_storage()._weak_ref()
    del x
    assert torch.UntypedStorage._expired(watch)
    torch.UntypedStorage._free_weak_ref(watch)
    registry.close()
    assert registry.live_bytes == {0: 1024}  # as it was when it was looked at last


def test_memory_that_two_storages_share_counts_once():
    numpy = pytest.importorskip("numpy")
    array = numpy.ones(1000, numpy.float32)
    whole, again, part = map(torch.from_numpy, (array, array, array[10:]))
    registry = registry_of(whole, again, part)
    assert registry.live_bytes == {0: 4000}
    del whole
    registry.sweep(1)
    assert registry.live_bytes == {0: 4000}
    del again, part
    gc.collect()
    registry.sweep(2)
    assert registry.live_bytes == {0: 0}


def test_what_is_only_found_again_is_not_new():
    x, y = torch.ones(256), torch.ones(512)
    registry = registry_of(x)
    registry.grows = False
    with activate_registry(registry):
        assert observe(y, C.USER_TENSORS, "y").size == 2048
    assert registry.live_bytes == {0: 1024}


def test_a_storage_that_grew_is_another():
    x = torch.ones(256)
    registry = registry_of(x)
    registry.sweep(1)
    x.untyped_storage().resize_(8192)
    with activate_registry(registry):
        observe(x, C.USER_TENSORS, "x")
    assert registry.live_bytes == {0: 8192}
    assert list(registry.columns.size) == [1024, 8192]
    assert list(registry.columns.freed_at) == [1, ALIVE]


def test_looks_are_granted_while_they_are_cheap(monkeypatch):
    monkeypatch.setattr("nbmem.capture.record.time_budget.GRACE_S", GRACE_S)
    now = [0.0]
    put_clock(monkeypatch, perf_counter=lambda: now[0], thread_time=lambda: now[0])
    time_budget, granted = TimeBudget(), []
    for _ in range(100):
        with time_budget.spend("a graph") as may:
            now[0] += 0.01 if may else 0
        granted.append(may)
        now[0] += 0.1
    assert all(granted[:ALWAYS])
    assert (GRACE_S + 10 * SHARE) / 0.01 - 2 <= sum(granted) <= (GRACE_S + 11 * SHARE) / 0.01 + 2
    assert time_budget.refused == {"a graph": granted.count(False)}


# --- the machine


def test_a_container_is_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr("nbmem.capture.devices.host._CGROUP", tmp_path)
    host = Host()
    before = host.info(torch, 0).total_bytes
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("400000000\n")
    assert host.info(torch, 0).total_bytes == before
    (tmp_path / "memory.max").write_text("512000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 100000000\n")
    assert host.info(torch, 0).total_bytes == 512_000_000
    assert host.read(torch, 0, whole=True).used >= 300_000_000


def test_resident_bytes_are_read_anew_and_are_those_of_the_process_that_asks(monkeypatch):
    host = Host()
    gc.collect()  # what other tests left must not go meanwhile
    before = host.read(torch, 0, whole=False).process
    ballast = mmap(-1, 64 << 20)  # the heap may have as much left that is resident already
    ballast.write(b"1" * len(ballast))
    now = [time.perf_counter_ns()]
    put_clock(monkeypatch, perf_counter_ns=lambda: now[0])
    now[0] += FRESH_NS
    grown = host.read(torch, 0, whole=False).process
    assert grown - before > len(ballast) // 2
    kept = host._statm
    monkeypatch.setattr("nbmem.capture.devices.host.os.getpid", lambda: -1)  # a forked child
    now[0] += FRESH_NS
    assert host.read(torch, 0, whole=False).process
    assert host._statm is not kept


@pytest.mark.skipif(why_unreadable() is not None, reason="this torch shows no saved tensors")
def test_what_forwards_without_a_backward_keep_is_theirs():
    model, losses = network(), []
    trace = nbmem.trace("cell", namespace={"model": model, "losses": losses})
    with trace:
        losses += (model(torch.randn(64 * 32, 256)).pow(2).mean() for _ in range(4))
    report = trace.report()
    ends = [row.ledger_at_end for row in rows(report, "forward")]
    kept = 64 * (HIDDEN + OUTPUT)  # what ReLU and the square have saved
    assert [held[C.ACTIVATIONS] // kept for held in ends] == [1, 2, 3, 4]
    assert report.ledger_at_end[C.INPUTS] == 4 * 64 * INPUT
