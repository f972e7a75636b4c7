"""Cards that share the host's memory: GB10, Jetson and WDDM."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from nbmem.api import device_selection
from nbmem.api.live_tensors import in_use_now
from nbmem.capture import torch_cuda
from nbmem.capture.devices import nvml, nvml_readings
from nbmem.capture.processes import gpu_processes
from nbmem.capture.record import cell_deltas
from nbmem.capture.record.card_sampler import Sampler
from nbmem.capture.record.spilled_memory import with_spilled
from nbmem.capture.torch_cuda import Counters
from nbmem.core.errors import FileFormatError, ProbeUnavailableError, UsageError
from nbmem.core.files.session import open_session, save_session
from nbmem.core.session.categories import Category
from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.session import CardSamples, DeviceInfo
from nbmem.core.units import GIB, MIB
from nbmem.estimates.card_choice import card_for
from nbmem.frontends.sidebar.card_reader import CardReader
from nbmem.report.analysis import build_report, card_ledger_of
from nbmem.views.exports.report import report_json
from nbmem.views.text import render_text
from tests.faults.fake_nvml import (
    NOT_AVAILABLE,
    OTHER,
    PROCESS,
    FakeNvml,
    NVMLError,
    memory,
    process,
)
from tests.recorded_runs import load, session_of

MACHINE, AVAILABLE = 128 * GIB, 100 * GIB
CUDA_FREE = 90 * GIB
"""Less than is available: page cache, which CUDA does not count as free."""
RESERVED = 1 * GIB
PROCESSES = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818 - pynvml's name
    """`Not Supported`, as pynvml raises it."""

    value = 3


def not_supported():
    raise NVMLError_NotSupported("Not Supported")


@pytest.fixture
def library(monkeypatch):
    """Fake NVML of a GB10 with 128 GiB, before torch starts."""
    found = FakeNvml()
    found.misbehave("nvmlDeviceGetMemoryInfo", not_supported)
    found.misbehave("nvmlDeviceGetName", lambda: "NVIDIA GB10")
    monkeypatch.setitem(sys.modules, "pynvml", found)
    monkeypatch.setattr(nvml, "_hung", {})
    machine = SimpleNamespace(total=MACHINE, available=AVAILABLE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(torch_cuda, "initialized_torch", lambda: None)
    return found


def start_torch(monkeypatch, *, integrated=1, used=True, total=MACHINE, reserved=RESERVED):
    """Start torch; an early query of the card would make a context."""

    def mem_get_info(_index):
        assert used, "this would make a context"
        return CUDA_FREE, total

    card = SimpleNamespace(
        total_memory=total, is_integrated=integrated, name="GPU", uuid="1-2", major=12, minor=1
    )
    torch = SimpleNamespace(
        __version__="2.13.0",
        cuda=SimpleNamespace(get_device_properties=lambda _i: card, mem_get_info=mem_get_info),
    )
    counters = Counters(
        t_ns=0, actions=0, allocated=512, active=512, requested=512, reserved=reserved,
        peak_allocated=512,
    )  # fmt: skip
    for module in (torch_cuda, nvml):
        monkeypatch.setattr(module, "initialized_torch", lambda: torch)
    for module in (torch_cuda, cell_deltas, nvml_readings):
        monkeypatch.setattr(module, "device_count", lambda: 1)
    for module in (torch_cuda, cell_deltas):
        monkeypatch.setattr(module, "read_counters", lambda _index: counters)
    monkeypatch.setattr(torch_cuda, "is_used", lambda _index: used)


def sample_once():
    """Take one reading; return the sampler and its notes."""
    notes = []
    found = Sampler(None, notes.append)
    found.read()
    return found, notes


def session_with(found):
    """Make a recording with a sampler's card and readings."""
    session = session_of(load("cudagraph_mlp_b512_sgd"))
    (trace,) = session.devices
    by_nvml, samples = found.card_bytes(0), found.samples(0)
    info = torch_cuda.device_info(0, by_nvml, wddm=found.is_wddm(0))
    t_ns = np.full(len(samples), trace.events.t_ns[0])
    trace = replace(trace, info=info, samples=replace(samples, t_ns=t_ns))
    return balanced(replace(session, devices=(trace,)))


def balanced(session):
    card_ledger = card_ledger_of(session)
    for position in range(0, card_ledger.events + 1, 41):
        card_ledger.ledger(position)  # it checks itself
    return session


def test_a_card_that_nvml_tells_no_memory_of_is_listed_with_the_hosts(library):
    (card,) = gpu_processes.cards_now(kernels={})
    assert (card.name, card.total, card.used) == ("NVIDIA GB10", MACHINE, MACHINE - AVAILABLE)
    assert {one.used for one in card.neighbours} == {PROCESS, OTHER}
    assert "NVIDIA GB10  128.00 GiB shared with the host" in device_selection.table()
    text = in_use_now()
    assert "28.00 GiB of 128.00 GiB in use, 100.00 GiB free, shared with the host" in text
    assert text.count("shares the host's") == 1
    assert "Nobody is named" not in text
    (here,) = device_selection.cards_here()
    assert (here.total, here.shared) == (MACHINE, True)


def test_a_figure_that_no_source_has_is_missing_alone(library):
    library.misbehave("nvmlDeviceGetName", lambda: "NVIDIA Something")
    library.misbehave("nvmlSystemGetDriverVersion", not_supported)
    (card,) = gpu_processes.cards_now(kernels={})
    assert (card.total, card.used, card.unattributed) == (None, None, 0)
    assert {one.used for one in card.neighbours} == {PROCESS, OTHER}
    assert "0  NVIDIA Something: bytes not said" in in_use_now()
    assert "NVIDIA Something  size not said by NVML  driver unknown" in device_selection.table()
    assert device_selection.cards_here()[0].total is None
    with pytest.raises(ProbeUnavailableError, match="how much memory this card has"):
        nvml.NvmlProbe().read(0)


def test_a_name_that_is_not_supported_leaves_the_rest(library):
    library.misbehave("nvmlDeviceGetName", not_supported)
    library.misbehave("nvmlDeviceGetMemoryInfo", memory)
    (card,) = nvml.NvmlProbe().cards()
    assert (card.name, card.total) == ("unknown", memory().total)


def test_cuda_is_asked_only_of_a_card_that_torch_uses(library, monkeypatch):
    start_torch(monkeypatch, used=False)
    assert nvml.NvmlProbe().read(0).used == MACHINE - AVAILABLE
    start_torch(monkeypatch, total=MACHINE - GIB)
    reading = nvml.NvmlProbe().read(0)
    assert (reading.total, reading.used) == (MACHINE - GIB, MACHINE - GIB - AVAILABLE)
    assert (reading.process, reading.driver, reading.shared) == (PROCESS, 0, True)


@pytest.mark.parametrize("name", ["Orin (nvgpu)", "NVIDIA N9X"])
def test_a_recording_of_a_shared_card_balances_against_the_host(
    library, monkeypatch, name, tmp_path
):
    library.misbehave("nvmlDeviceGetName", lambda: name)
    start_torch(monkeypatch)
    found, notes = sample_once()
    assert notes == []
    (row,) = [*zip(found.samples(0).used, found.samples(0).process, strict=True)]
    assert row == (MACHINE - AVAILABLE, PROCESS)
    session = open_session(save_session(session_with(found), tmp_path / "shared"))
    report = build_report(session)
    assert report_json(report)["device"]["shared"]
    assert report.device.total_bytes == MACHINE
    assert report.peak.process is not None
    text = render_text(report)
    assert "(memory shared with the host)" in text
    assert "no memory of its own and shares the host's" in text


def test_a_process_whose_bytes_no_source_has_is_unknown(library, monkeypatch):
    for name in PROCESSES:
        library.misbehave(name, not_supported)
    start_torch(monkeypatch)
    assert cell_deltas.DeltaReader().now().process is None
    report = build_report(session_with(sample_once()[0]))
    assert report.peak.process is None
    assert report.ledger_at_end[Category.OTHER_PROCESSES] == 0
    assert "context and others" in render_text(report)


def test_a_discrete_card_has_cudas_figures_and_a_sentence(library, monkeypatch):
    library.misbehave("nvmlDeviceGetName", lambda: "NVIDIA Something")
    start_torch(monkeypatch, integrated=0)
    found, notes = sample_once()
    assert found.samples(0).used.tolist() == [MACHINE - CUDA_FREE]
    assert found.samples(0).process.tolist() == [PROCESS]
    assert [note for note in notes if "cudaMemGetInfo" in note] == notes


def test_without_nvml_a_shared_card_is_the_hosts_too(library, monkeypatch):
    library.misbehave("nvmlInit", not_supported)
    start_torch(monkeypatch)
    found, (note,) = sample_once()
    assert "NVML cannot be read" in note
    assert found.samples(0).used.tolist() == [MACHINE - AVAILABLE]
    (sample,) = CardReader().read()
    assert (sample.total, sample.free, sample.shared) == (MACHINE, AVAILABLE, True)


def test_the_sidebar_is_told_that_memory_is_shared(library, monkeypatch):
    start_torch(monkeypatch)
    (sample,) = CardReader().read()
    assert (sample.name, sample.total, sample.free) == ("NVIDIA GB10", MACHINE, AVAILABLE)
    assert (sample.process, sample.driver, sample.shared) == (PROCESS, 0, True)


def test_an_estimate_names_the_card_that_it_has_no_figures_of(library, monkeypatch):
    torch = SimpleNamespace(version=SimpleNamespace(cuda="13.0", hip=None))
    monkeypatch.setattr(device_selection, "import_torch", lambda: torch)
    with pytest.raises(UsageError, match="This machine has a NVIDIA GB10"):
        card_for(None)


CARD = 8 * GIB


@pytest.fixture
def windows(library, monkeypatch):
    """Fake a full card of 8 GiB under WDDM; torch holds 10 GiB."""
    full = memory(total=CARD, free=64 * MIB, used=CARD - 64 * MIB, reserved=192 * MIB)
    library.misbehave("nvmlDeviceGetMemoryInfo", lambda: full)
    library.misbehave("nvmlDeviceGetName", lambda: "NVIDIA GeForce RTX 3070")
    library.nvmlDeviceGetCurrentDriverModel = lambda _handle: 0
    hidden = [
        process(one.pid, NOT_AVAILABLE) for one in library.nvmlDeviceGetComputeRunningProcesses(7)
    ]
    for name in PROCESSES:
        library.misbehave(name, lambda: hidden)
    start_torch(monkeypatch, integrated=0, total=CARD, reserved=10 * GIB)
    return library


def test_under_wddm_a_process_is_unknown_and_more_than_the_card_is_no_contradiction(windows):
    found, notes = sample_once()
    assert notes == []
    assert found.is_wddm(0)
    assert found.samples(0).used.tolist() == [CARD - 64 * MIB]
    assert found.samples(0).process.tolist() == [NOT_KNOWN]
    (card,) = gpu_processes.cards_now(kernels={})
    assert {one.used for one in card.neighbours} == {None}
    assert "Windows manages its memory (WDDM)" in in_use_now()


def test_outside_of_wddm_more_than_the_card_is_a_contradiction(windows):
    windows.nvmlDeviceGetCurrentDriverModel = lambda _handle: not_supported()
    found, (note,) = sample_once()
    assert "which cannot be" in note
    assert found.samples(0).used.tolist() == [NOT_KNOWN]


def test_wsl_is_windows(windows, monkeypatch):
    del windows.nvmlDeviceGetCurrentDriverModel
    assert not nvml.NvmlProbe().read(0).wddm
    monkeypatch.setattr(
        nvml_readings.platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2"
    )
    assert nvml.NvmlProbe().read(0).wddm


def test_a_file_whose_host_held_more_than_there_is_is_refused(tmp_path):
    session = session_of(load("cudagraph_mlp_b512_sgd"))
    (trace,) = session.devices
    info = replace(trace.info, spilled_bytes=trace.info.total_bytes + 1)
    path = save_session(replace(session, devices=(replace(trace, info=info),)), tmp_path / "odd")
    with pytest.raises(FileFormatError, match="held more of a card's bytes than there are"):
        open_session(path)


INFO = DeviceInfo(index=0, name="GPU", total_bytes=8 * GIB, virtual=False, torch="2.13.0")


@pytest.mark.parametrize(
    ("wddm", "most_reserved", "spilled"),
    [
        (True, 7 * GIB, 2 * GIB),
        (True, 11 * GIB, 3 * GIB),
        (False, 7 * GIB, 0),
        (False, 9 * GIB, GIB),
    ],
)
def test_what_the_card_has_no_room_for_is_with_the_host(wddm, most_reserved, spilled):
    samples = CardSamples.from_rows([(0, NOT_KNOWN, 0, 100 * GIB, 0), (0, 5 * GIB, 0, 7 * GIB, 0)])
    info = with_spilled(replace(INFO, wddm=wddm), most_reserved, samples)
    assert (info.spilled_bytes, info.own_bytes) == (spilled, 8 * GIB)


@pytest.mark.parametrize("wddm", [True, False])
def test_a_run_that_spilled_balances_and_is_told_so(wddm, tmp_path):
    session = session_of(load("cudagraph_mlp_b512_sgd"))
    (trace,) = session.devices
    reserved = int(card_ledger_of(session).reserved.max())
    small = replace(trace.info, total_bytes=reserved - 64 * MIB, wddm=wddm)
    trace = replace(trace, info=with_spilled(small, reserved, trace.samples))
    session = open_session(save_session(replace(session, devices=(trace,)), tmp_path / "spilled"))
    report = build_report(balanced(session))
    assert report.device.spilled_bytes == 64 * MIB
    assert "64.0 MiB of the host's" in " ".join(render_text(report).split())
    notes = "At least 64.0 MiB of what torch held lay in the host's memory"
    assert [note for note in report.notes if notes in note]
