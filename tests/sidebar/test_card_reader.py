"""Readings of the cards, with fakes of the counters and the driver."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("numpy", reason="the probes need numpy")

from nbmem.capture.devices import resident_memory
from nbmem.capture.devices.nvml import CardReading
from nbmem.capture.torch_cuda import Counters
from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.session.cell_delta import CellPeak
from nbmem.frontends.sidebar import card_reader
from nbmem.frontends.sidebar.card_reader import CardReader


@pytest.fixture
def card(monkeypatch):
    """Fake one card: torch's counters and the driver's figures."""
    card = SimpleNamespace(allocated=0, reserved=0, peak=0, used=0, process=None, moves=0)

    def read_counters(index):
        assert index == 0
        card.reserved += card.moves
        return Counters(
            t_ns=0,
            actions=0,
            allocated=card.allocated,
            active=card.allocated,
            requested=card.allocated,
            reserved=card.reserved,
            peak_allocated=card.peak,
        )

    nvml = SimpleNamespace(
        read=lambda _index: CardReading(total=1000, used=card.used, driver=0, process=card.process),
        other_processes=lambda _index: {1 << 30: 5, os.getppid(): 9},
        cards=lambda: (SimpleNamespace(index=0, name="Some Card"),),
    )
    monkeypatch.setattr(card_reader.torch_cuda, "device_count", lambda: 1)
    monkeypatch.setattr(card_reader.torch_cuda, "read_counters", read_counters)
    monkeypatch.setattr(card_reader.torch_cuda, "card_bytes", lambda _index: (600, 900))
    monkeypatch.setattr(card_reader, "NvmlProbe", lambda: nvml)
    card.nvml = nvml
    return card


def peaks(reader, card, *readings):
    found = []
    for card.allocated in readings:
        card.reserved = 512
        (sample,) = reader.read()
        found.append((sample.peak, sample.peak_exact))
    return found


def test_without_a_meter_the_highest_reading_is_the_least_of_the_peak(card):
    card.peak, card.allocated, card.reserved = 100, 40, 512
    reader = CardReader()
    reader.begin()
    assert peaks(reader, card, 50, 30, 120, 10) == [
        (50, False),
        (50, False),
        (120, False),
        (120, False),
    ]


def test_the_peak_of_a_cell_that_frees_is_where_it_began(card):
    card.peak, card.allocated, card.reserved = 100, 100, 512
    reader = CardReader()
    reader.begin()
    assert peaks(reader, card, 10) == [(100, False)]


def test_a_cells_meter_knows_its_peak(card):
    peak = CellPeak(device=0, allocated=100, exact=True)
    reader = CardReader()
    reader.begin(SimpleNamespace(read=lambda _index: peak))
    assert peaks(reader, card, 50, 100) == [(100, True), (100, True)]
    assert peaks(reader, card, 120) == [(120, False)], "taken after the cell's end"


def test_a_card_that_torch_holds_nothing_of_is_left_alone(card):
    card.reserved = 0
    assert CardReader().read() == ()


def test_what_the_driver_hides_is_none(card):
    card.reserved, card.used = 512, 700
    (sample,) = CardReader().read()
    assert (sample.total, sample.free, sample.process) == (1000, 300, None)


def test_without_nvml_torch_says_what_is_free(card):
    def fail(_index):
        raise ProbeUnavailableError("none")

    card.reserved, card.nvml.read = 512, fail
    (sample,) = CardReader().read()
    assert (sample.total, sample.free, sample.process) == (900, 600, None)


def test_figures_that_do_not_belong_together_are_not_told(card):
    card.reserved, card.moves, card.process = 512, 1, 700
    (sample,) = CardReader().read()
    assert (sample.free, sample.process) == (None, None)
    assert sample.reserved > 512


def test_other_processes_are_told_with_what_can_be_seen_of_them(card):
    mine, hidden = CardReader().processes()
    assert (mine.pid, mine.used) == (os.getppid(), 9)
    assert mine.name
    assert (hidden.name, hidden.notebook, hidden.used) == (None, None, 5)


@pytest.mark.parametrize(
    ("session", "notebook"),
    [
        ("/home/x/deep/train.ipynb", "train.ipynb"),
        ("/home/x/console-1-2345", None),
        ("", None),
    ],
)
def test_a_kernel_is_known_by_its_notebook(session, notebook):
    code = "print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"JPY_SESSION_NAME": session},
    ) as process:
        process.stdout.readline()
        assert resident_memory.notebook_of(process.pid) == notebook
        name = resident_memory.process_name(process.pid)
        assert name.startswith("train.ipynb (" if notebook else "python")
        assert str(process.pid) in name
        process.stdin.write(b"\n")


def test_a_process_that_is_gone_or_hidden_has_its_number():
    assert resident_memory.process_name(1 << 30) == f"process {1 << 30}"


def test_virtual_cards_are_shown_before_anything_is_on_them():
    pytest.importorskip("torch")
    from nbmem import virtual

    assert CardReader().read_unused() == ()
    with virtual.activated("2xT4"):
        reader = CardReader()
        assert reader.read() == ()
        empty = reader.read_unused()
    assert [(one.index, one.allocated, one.reserved, one.peak) for one in empty] == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
    ]
    assert all(0 < one.free < one.total for one in empty)
    assert {(one.name, one.virtual, one.peak_exact) for one in empty} == {("Tesla T4", True, True)}
