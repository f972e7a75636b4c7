"""A cell's peak is counted, and the user's own peak counter reads as without nbmem."""

import random
import subprocess
import sys
import textwrap

import pytest
import torch

from nbmem import virtual
from nbmem.capture.torch_memory import peak_counters
from nbmem.capture.torch_memory.peak_counters import (
    READERS,
    RESETTERS,
    begin_measuring,
    restore_functions,
    watch_resets,
)
from nbmem.core.session.cell_delta import CellPeak

MIB = 1 << 20
NAMES = (*READERS, *RESETTERS)


@pytest.fixture(autouse=True)
def two_cards():
    with virtual.activated("2xT4"):
        yield
        restore_functions()


def take(mib, device=0):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=f"cuda:{device}")


def exactly(mib, device=0):
    return CellPeak(device=device, allocated=mib * MIB, exact=True)


def functions():
    """Return torch's functions as they stand in its module."""
    return [vars(torch._C).get(name) for name in NAMES]


def test_a_peak_below_an_earlier_one_is_exact():
    kept = take(4)
    take(1000)
    meter = begin_measuring()
    take(600)
    assert meter.end() == exactly(604)
    assert torch.cuda.max_memory_allocated() == 1004 * MIB
    assert kept.nbytes == 4 * MIB


def test_a_meter_stays_as_it_ended():
    meter = begin_measuring()
    take(8)
    assert meter.read(0) == exactly(8)
    assert meter.end() == exactly(8)
    take(64)
    assert (meter.read(0), meter.end()) == (exactly(8), exactly(8))


def test_without_any_card_there_is_no_peak():
    virtual.deactivate()
    assert begin_measuring().end() is None


def test_the_higher_of_two_cards_is_the_peak():
    take(500, 0)
    take(500, 1)
    meter = begin_measuring()
    take(10, 0)
    take(20, 1)
    assert (meter.read(0), meter.read(1)) == (exactly(10), exactly(20, 1))
    assert meter.end() == exactly(20, 1)


def test_what_was_before_the_users_reset_counts_too():
    take(1000)
    meter = begin_measuring()
    take(600)
    torch.cuda.reset_peak_memory_stats()
    take(100)
    assert torch.cuda.max_memory_allocated() == 100 * MIB
    assert meter.end() == exactly(600)
    later = begin_measuring()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    assert later.end() == exactly(0)


def test_meters_may_overlap():
    take(900)
    outer = begin_measuring()
    take(300)
    inner = begin_measuring()
    take(50)
    assert inner.end() == exactly(50)
    assert outer.end() == exactly(300)
    assert torch.cuda.max_memory_allocated() == 900 * MIB


def readings():
    """Return all that Python can read of the counters of both cards."""
    return [
        (
            torch.cuda.memory_stats(card),
            torch.cuda.memory_stats_as_nested_dict(card),
            torch.accelerator.memory_stats(card),
            torch.cuda.max_memory_allocated(card),
            torch.cuda.max_memory_reserved(card),
            torch.cuda.memory_summary(card),
        )
        for card in (0, 1)
    ]


def run_program(seed, *, measured):
    """Run a random program; return its readings and the meters' peaks beside the true ones."""
    draw, meters = random.Random(seed), random.Random(-seed)
    held, read, peaks = [], [], []
    meter, highest = None, 0
    with virtual.activated("2xT4"):
        torch.empty(1, device="cuda")
        for _ in range(60):
            if measured and meters.random() < 0.2:
                peaks += [] if meter is None else [(meter.end().allocated, highest)]
                meter = begin_measuring()
                highest = max(map(torch.cuda.memory_allocated, (0, 1)))
            step = draw.choice(("take", "take", "take", "free", "free", "read", "reset", "empty"))
            if step == "take":
                size = draw.choice((1, 700, 5 << 10, MIB, 3 * MIB, 30 * MIB))
                stream = torch.cuda.Stream() if draw.random() < 0.2 else None
                card = draw.randrange(2)
                held.append(torch.empty(size, dtype=torch.uint8, device=f"cuda:{card}"))
                if stream is not None and card == 0:
                    held[-1].record_stream(stream)
            elif step == "free" and held:
                held.pop(draw.randrange(len(held)))
            elif step == "reset":
                card = draw.randrange(2)
                reset = draw.choice((torch.cuda, torch.accelerator)).reset_peak_memory_stats
                reset(card)
            elif step == "empty":
                torch.cuda.empty_cache()
            elif step == "read":
                read.append(readings())
            highest = max(highest, *map(torch.cuda.memory_allocated, (0, 1)))
        held.clear()
        read.append(readings())
        restore_functions()
    return read, peaks


@pytest.mark.parametrize("seed", range(1, 9))
def test_every_reading_of_the_users_is_as_without_meters(seed):
    without, _ = run_program(seed, measured=False)
    with_meters, peaks = run_program(seed, measured=True)
    assert with_meters == without
    assert peaks
    assert [found for found, _ in peaks] == [true for _, true in peaks]


def test_a_counter_that_cannot_be_reset_gives_the_least(monkeypatch):
    restore_functions()
    kept = take(10)
    take(90)

    def refuse(_index):
        raise RuntimeError("not supported")

    monkeypatch.setattr(torch._C, "_cuda_resetPeakMemoryStats", refuse)
    low, high = begin_measuring(), begin_measuring()
    take(50)
    assert low.end() == CellPeak(device=0, allocated=10 * MIB, exact=False)
    take(200)
    assert high.end() == exactly(210), "above all before, the counter itself tells"
    assert kept.nbytes == 10 * MIB
    restore_functions()


def test_cards_that_come_unseen_give_the_least():
    virtual.deactivate()
    meter = begin_measuring()
    with virtual.activated("T4"):
        take(50)
        assert meter.end() == CellPeak(device=0, allocated=50 * MIB, exact=False)


def test_cards_that_come_in_sight_are_counted():
    virtual.deactivate()
    meter = begin_measuring()
    with virtual.activated("T4"):
        watch_resets()
        take(50)
        torch.cuda.reset_peak_memory_stats()
        assert meter.end() == exactly(50)
        restore_functions()


def test_torchs_functions_are_put_back_at_once_if_they_read_the_same():
    before = functions()
    begin_measuring().end()
    assert functions() != before
    restore_functions()
    assert functions() == before


def test_else_when_the_user_has_reset_what_they_add():
    before = functions()
    take(100)
    begin_measuring().end()
    restore_functions()
    assert torch.cuda.max_memory_allocated() == 100 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    assert functions() == before


def test_errors_are_torchs_own():
    begin_measuring().end()
    with pytest.raises(RuntimeError, match="Invalid device argument 7"):
        torch._C._cuda_resetPeakMemoryStats(7)
    with pytest.raises(RuntimeError, match="Invalid device argument 7"):
        torch._C._cuda_memoryStats(7)


def test_a_fault_of_nbmems_leaves_the_users_reset_alone(monkeypatch):
    take(100)
    meter = begin_measuring()

    def fail(_index):
        raise ZeroDivisionError

    monkeypatch.setattr(peak_counters, "read_counters", fail)
    torch.cuda.reset_peak_memory_stats()
    monkeypatch.undo()
    assert torch.cuda.max_memory_allocated() == 0
    meter.end()


def test_a_fault_behind_the_reset_leaves_the_users_reading_alone(monkeypatch):
    take(100)
    calls = []

    def fail_twice(stats):
        calls.append(stats)
        if len(calls) == 2:
            raise ZeroDivisionError
        return found(stats)

    found = peak_counters.peaks_in
    monkeypatch.setattr(peak_counters, "peaks_in", fail_twice)
    meter = begin_measuring()
    assert torch.cuda.max_memory_allocated() == 100 * MIB
    take(200)
    assert meter.end() == exactly(200)


def test_the_import_of_torch_is_seen_before_cuda_can_be_used(tmp_path):
    package = tmp_path / "torch"
    (package / "cuda").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import _C\nfrom . import cuda\n")
    (package / "_C.py").write_text("_cuda_memoryStats = _cuda_resetPeakMemoryStats = print\n")
    (package / "cuda" / "__init__.py").write_text(
        "def is_initialized(): return False\nfrom . import memory\n"
    )
    (package / "cuda" / "memory.py").write_text(
        "from .. import _C\nfound = _C._cuda_resetPeakMemoryStats\n"
    )
    code = """\
        import sys
        from nbmem.capture.torch_memory.peak_counters import begin_measuring, restore_functions
        finders = list(sys.meta_path)
        meter = begin_measuring()
        assert len(sys.meta_path) == len(finders) + 1
        assert "torch" not in sys.modules
        import torch
        assert sys.meta_path == finders
        assert meter.watched
        assert torch.cuda.memory.found is torch._C._cuda_resetPeakMemoryStats is not print
        restore_functions()
        assert torch._C._cuda_resetPeakMemoryStats is print
    """
    environment = {"PYTHONPATH": f"{tmp_path}:{':'.join(filter(None, sys.path))}"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True)
