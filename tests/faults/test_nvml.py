"""Faults in NVML cost its own figures and never block for long."""

import functools
import itertools
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from nbmem.api import device_selection
from nbmem.capture import timeouts, torch_cuda
from nbmem.capture.devices import nvml, resident_memory
from nbmem.capture.devices.nvml import NvmlProbe
from nbmem.capture.record import card_sampler, cell_deltas
from nbmem.capture.record.card_sampler import Sampler
from nbmem.capture.torch_cuda import Counters
from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.session.categories import Category
from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.session import CardSamples
from nbmem.core.units import MIB
from nbmem.frontends.sidebar.card_reader import CardReader
from nbmem.report.ledger.card_ledger import CardLedger
from tests.faults.fake_nvml import (
    DRIVER,
    FUNCTIONS,
    OTHER,
    OTHER_PID,
    PROCESS,
    RESERVED,
    TOTAL,
    USED,
    FakeNvml,
    memory,
    misbehaviours,
    process,
    raiser,
)
from tests.recorded_runs import load, session_of

BY_CUDA = USED + 512
"""Bytes in use by cudaMemGetInfo: which source answered can be told."""
CASES = list(misbehaviours())
BELIEVED = {"free is 0", "free is 1", "free is 1048576", "another card"}
"""Cards may be full, and larger than the slice of them that torch may use."""
QUICK_S = 0.1
"""The limit of a call in most of these tests."""


@pytest.fixture
def fake(monkeypatch):
    """Fake one card, of which torch holds some, and its NVML."""
    found = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    counters = Counters(
        t_ns=0, actions=0, allocated=512, active=512, requested=512, reserved=RESERVED,
        peak_allocated=512,
    )  # fmt: skip
    card = SimpleNamespace(total_memory=TOTAL - DRIVER, uuid="1-2", name="H100")
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _index: card))
    for module in (torch_cuda, cell_deltas):
        monkeypatch.setattr(module, "device_count", lambda: 1)
        monkeypatch.setattr(module, "read_counters", lambda _index: counters)
    monkeypatch.setattr(torch_cuda, "card_bytes", lambda _index: (TOTAL - BY_CUDA, TOTAL))
    for module in (torch_cuda, nvml):
        monkeypatch.setattr(module, "initialized_torch", lambda: torch)
    monkeypatch.setattr(card_sampler, "INTERVAL_S", 0.001)
    monkeypatch.setattr(nvml, "_hung", {})
    yield found
    found.release()


@pytest.fixture
def hasty(monkeypatch):
    """Set timeouts that a test can wait for."""
    for module in (nvml, card_sampler, timeouts):
        monkeypatch.setattr(module, "LIMIT_S", QUICK_S)
    monkeypatch.setattr(nvml, "COLD_S", QUICK_S)
    monkeypatch.setattr(timeouts, "GRACE_S", 0.01)
    monkeypatch.setattr(card_sampler, "GRACE_S", 0.01)


def recorded(fake, least=8):
    """Take some readings; return the sampler and its notes."""
    notes = []
    found = Sampler(None, notes.append)
    begin = time.monotonic()
    found.start()
    while len(found._rows.get(0, ())) < least and time.monotonic() - begin < 0.05:
        time.sleep(0.001)
    found.stop()
    return found, notes


@functools.cache
def a_session():
    return session_of(load("cudagraph_mlp_b512_sgd"))


def checked_ledger(found):
    """Return the checked ledger of a recording with these readings."""
    session = a_session()
    (trace,) = session.devices
    total, driver = found.card_bytes(0) or (TOTAL, 0)
    samples = found.samples(0)
    times = np.linspace(trace.events.t_ns[0], trace.events.t_ns[-1], len(samples)).astype(np.int64)
    trace = replace(
        trace,
        info=replace(trace.info, total_bytes=total, driver_bytes=driver),
        samples=replace(samples, t_ns=times),
    )
    card_ledger = CardLedger(replace(session, devices=(trace,)))
    for position in range(0, card_ledger.events + 1, 41):
        card_ledger.ledger(position)  # it checks itself
    return card_ledger


@pytest.mark.parametrize("when", ["always", "once in the middle", "from the middle on"])
def test_whatever_nvml_does_its_figures_are_right_or_unknown(fake, when, request):
    first, last = {
        "always": (1, 10**9),
        "once in the middle": (4, 4),
        "from the middle on": (4, 10**9),
    }[when]
    threads = threading.active_count()
    wrong = {}
    for name, function, instead in CASES:
        fresh = FakeNvml()
        fresh.misbehave(function, instead, first=first, last=last)
        sys.modules["pynvml"] = fresh
        begin = time.monotonic()
        found, notes = recorded(fresh)
        took = time.monotonic() - begin
        samples = found.samples(0)
        card_ledger = checked_ledger(found)
        checks = {
            "used": set(samples.used) <= {USED, BY_CUDA, NOT_KNOWN} or name in BELIEVED,
            "process": set(samples.process) <= {PROCESS, NOT_KNOWN},
            "card": found.card_bytes(0) in {None, (TOTAL, DRIVER), (TOTAL, 0)}
            or name in {"reserved is 1", "reserved is 1048576", "another card"},
            "others": set(found.other_processes(0).values())
            <= {OTHER, 1, 1024**2},  # as somebody's figure may be
            "time": took < 1.5,
            "readings": len(samples) > 1,
            "reserved": set(samples.reserved) == {RESERVED},
            "said": bool(notes) or set(samples.used) == {USED} or name in BELIEVED,
            "sentences": all(note.endswith((".", "asks it again")) for note in notes),
            "once": len(notes) == len(set(notes)) <= 3,
            "threads": threading.active_count() == threads,
            "peak": card_ledger.peak_process() is None or card_ledger.peak_process() >= PROCESS,
        }
        if when == "once in the middle" and function == "nvmlDeviceGetMemoryInfo":
            checks["it goes on"] = samples.used[-1] in {USED, BY_CUDA}
        bad = [check for check, passed in checks.items() if not passed]
        if bad:
            wrong[name] = (bad, notes)
    assert not wrong


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("first", [1, 4])
def test_a_call_that_hangs_is_given_up_and_said_once(fake, hasty, name, first):
    fake.misbehave(name, fake.hang, first=first)
    begin = time.monotonic()
    found, notes = recorded(fake)
    assert time.monotonic() - begin < 4 * QUICK_S
    checked_ledger(found)
    if not notes:
        assert name not in fake.calls or fake.calls[name] < first, "it was never asked"
        return
    assert notes == [nvml._HUNG]
    assert set(found.samples(0).used) <= {USED, BY_CUDA}
    begin = time.monotonic()
    for _ in range(3):
        again, notes = recorded(fake)
        assert notes == [nvml._HUNG]
        assert not len(again.samples(0))
    with pytest.raises(ProbeUnavailableError, match="did not answer within a second"):
        NvmlProbe().read(0)
    assert device_selection.cards_here() == ()
    assert CardReader().read()[0].total == TOTAL
    assert time.monotonic() - begin < QUICK_S + 0.3, "nobody waits again"


def test_a_hang_costs_a_cell_a_second(fake):
    fake.misbehave("nvmlDeviceGetMemoryInfo", fake.hang, first=3)
    threads = threading.active_count()
    begin = time.monotonic()
    found, notes = recorded(fake)
    assert timeouts.LIMIT_S <= time.monotonic() - begin < 1.5
    assert notes == [nvml._HUNG]
    assert len(found.samples(0)), "what was read before it is there"
    fake.release()
    wait_for(lambda: threading.active_count() == threads)
    assert len(notes) == 1, "what it finds when it wakes up is of no interest any more"


def wait_for(condition, limit_s=5.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_another_nvml_is_asked_anew(fake, hasty, monkeypatch):
    fake.misbehave("nvmlInit", fake.hang)
    with pytest.raises(ProbeUnavailableError):
        NvmlProbe().read(0)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())  # as a virtual card puts one in
    assert NvmlProbe().read(0).total == TOTAL


def broken_import(err):
    class Finder:
        @staticmethod
        def find_spec(name, _path=None, _target=None):
            if name == "pynvml":
                raise err

    return Finder


@pytest.mark.parametrize(
    ("err", "said"),
    [
        (ModuleNotFoundError("No module named 'pynvml'"), "is not installed"),
        (ImportError("cannot import name 'c_nvmlDevice_t'"), "cannot be imported"),
        (AttributeError("partially initialized module"), "cannot be imported"),
        (OSError("libnvidia-ml"), "cannot be imported"),
        (SyntaxError("invalid syntax"), "cannot be imported"),
    ],
)
def test_a_package_whose_import_fails_counts_as_missing(fake, monkeypatch, err, said):
    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.setattr(sys, "meta_path", [broken_import(err), *sys.meta_path])
    found, (note,) = recorded(fake)
    assert said in note
    assert set(found.samples(0).used) == {BY_CUDA}
    checked_ledger(found)


def test_another_package_of_that_name_counts_as_missing(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(__version__="1.0"))
    found, (note,) = recorded(fake)
    assert "NVML cannot be read (" in note
    assert set(found.samples(0).used) == {BY_CUDA}


@pytest.mark.parametrize("case", CASES, ids=[name for name, *_ in CASES])
def test_the_other_readers_of_nvml_raise_what_they_promise(fake, case):
    _, function, instead = case
    fake.misbehave(function, instead)
    probe = NvmlProbe()
    for ask in (probe.cards, lambda: probe.read(0, others=True), lambda: probe.other_processes(0)):
        with suppress(ProbeUnavailableError):
            ask()
    probe.close()
    reader = CardReader()
    reader.begin()
    (sample,) = reader.read()
    assert sample.total in {TOTAL, 2 * TOTAL, 1, 1024**2}
    reader.processes()
    reader.close()
    assert cell_deltas.DeltaReader().now().process in {PROCESS, 1, 1024**2, None}
    device_selection.cards_here()
    assert device_selection._real_lines(hidden=False)


def test_a_card_that_is_lost_hides_no_other(fake):
    fake.misbehave("nvmlDeviceGetCount", lambda: 3)
    fake.misbehave("nvmlDeviceGetName", raiser(OSError()), first=2, last=2)
    assert [card.index for card in NvmlProbe().cards()] == [0, 2]


def test_what_torch_gives_back_while_nvml_is_asked_is_no_contradiction(fake, monkeypatch):
    held = itertools.chain([2 * TOTAL], itertools.repeat(RESERVED))
    monkeypatch.setattr(card_sampler, "_reserved", lambda _index: next(held))
    found, notes = recorded(fake)
    samples = found.samples(0)
    assert notes == []
    assert (samples.process >= RESERVED).all()


def test_a_sampler_may_be_stopped_by_any_thread_at_any_time(fake):
    threads = threading.active_count()
    notes = []
    never = Sampler(None, notes.append)
    never.stop()
    never.stop()
    never.start()
    assert threading.active_count() == threads, "it has ended before it began"
    twice = Sampler(None, notes.append)
    twice.start()
    twice.start()
    assert threading.active_count() == threads + 1
    others = [threading.Thread(target=twice.stop) for _ in range(3)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    twice.stop()
    assert threading.active_count() == threads
    assert not notes
    count = len(twice.samples(0))
    assert count >= 2
    assert twice.other_processes(0) == {f"process {OTHER_PID}": OTHER}


@pytest.mark.parametrize(
    ("nobodys", "listed", "driver"),
    [
        (9240576, (), DRIVER + 9240576),  # an H100 with one process on it
        (20971520, (process(1, 7 * MIB), process(2, 9 * MIB)), DRIVER + 20971520),
        (105 * MIB, (), DRIVER),  # a T4's least context: of somebody whom a container hides
        (9240576, (process(1, None),), DRIVER),  # hidden
        (-MIB, (), DRIVER),  # two readings at two moments
    ],
)
def test_what_is_counted_for_no_process_is_the_drivers(fake, nobodys, listed, driver):
    every = [process(os.getpid(), PROCESS), *listed]
    used = DRIVER + sum(one.usedGpuMemory or 0 for one in every) + nobodys
    fake.misbehave("nvmlDeviceGetMemoryInfo", lambda: memory(used=used, free=TOTAL - used))
    fake.misbehave("nvmlDeviceGetComputeRunningProcesses", lambda: every)
    fake.misbehave("nvmlDeviceGetGraphicsRunningProcesses", list)
    reading = NvmlProbe().read(0)
    assert (reading.used, reading.driver, reading.process) == (used, driver, PROCESS)


@pytest.mark.parametrize("value", [None, -1, "x", 2**64 - 1, 1.5])
def test_a_psutil_that_misbehaves_leaves_its_figures_unknown(fake, monkeypatch, value):
    class Process:
        def __init__(self, _pid=None):
            self.memory_info = lambda: SimpleNamespace(rss=value)
            self.name = lambda: value
            self.environ = lambda: {"JPY_SESSION_NAME": value}

    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(Process=Process))
    assert resident_memory.resident_bytes() is None
    assert resident_memory.notebook_of(1) is None
    name = "x (1)" if value == "x" else "process 1"
    assert resident_memory.process_name(1) == name
    found, notes = recorded(fake)
    assert not notes
    assert set(found.samples(0).host) == {NOT_KNOWN}


def test_the_ledger_takes_the_last_context_that_was_known():
    """Of five readings the second says nothing of this process, the fourth nothing at all."""
    session = a_session()
    (trace,) = session.devices
    t_ns = np.linspace(trace.events.t_ns[0], trace.events.t_ns[-1], 5).astype(np.int64)
    reserved = np.full(5, 100, np.int64)
    samples = CardSamples(
        t_ns=t_ns,
        used=np.array([1000, 2000, 3000, NOT_KNOWN, 5000]),
        process=np.array([300, NOT_KNOWN, 500, NOT_KNOWN, NOT_KNOWN]),
        reserved=reserved,
        host=np.full(5, NOT_KNOWN),
    )
    info = replace(trace.info, total_bytes=TOTAL, driver_bytes=50)
    card_ledger = CardLedger(
        replace(session, devices=(replace(trace, info=info, samples=samples),))
    )
    assert card_ledger.process_known
    *frameworks, context, others, driver = card_ledger._outside.at(t_ns, reserved)
    assert [one.tolist() for one in frameworks] == [[0] * 5] * 2
    assert context.tolist() == [200, 200, 400, 400, 400]
    assert others.tolist() == [650, 1650, 2450, 2450, 4450]
    assert driver.tolist() == [50] * 5
    assert card_ledger._outside.highest_read(int(t_ns[0]), int(t_ns[-1])) == 500
    for position in range(card_ledger.events + 1):
        ledger = card_ledger.ledger(position)
        assert ledger[Category.CONTEXT] in {200, 400}


def test_process_bytes_that_were_never_read_are_unknown():
    session = a_session()
    (trace,) = session.devices
    samples = replace(trace.samples, process=np.full(len(trace.samples), NOT_KNOWN))
    card_ledger = CardLedger(replace(session, devices=(replace(trace, samples=samples),)))
    assert not card_ledger.process_known
    assert card_ledger.peak_process() is None


@pytest.mark.torch
def test_a_traced_cell_is_whole_whatever_nvml_does(monkeypatch):
    torch = pytest.importorskip("torch")
    import nbmem.api.tracing as nbmem
    from nbmem import virtual

    monkeypatch.setattr(nvml, "_hung", {})
    for answer in (
        raiser(ZeroDivisionError()),
        lambda: memory(total=1, free=0),
        lambda: memory(free="x"),
    ):
        with virtual.activated("H100 80GB"):
            import pynvml

            with monkeypatch.context() as patch:
                patch.setattr(
                    pynvml, "nvmlDeviceGetMemoryInfo", lambda *_a, answer=answer, **_k: answer()
                )
                with nbmem.trace("cell", namespace={}) as trace:
                    kept = torch.ones(1 << 20, device="cuda")
            report = trace.report()
            assert report.ledger_at_end.allocated == 4 << 20
            assert report.device.total_bytes > 79 << 30
            assert any("NVML" in note for note in report.notes)
            del kept
