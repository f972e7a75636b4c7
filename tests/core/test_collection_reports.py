"""Reports of garbage collections lose no signal and no collection."""

import _thread
import functools
import gc
import signal
import sys

import pytest

from nbmem.core.runtime.garbage_collector import report_collections


@pytest.fixture(autouse=True)
def _interrupts_are_raised():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def collect():
    """Collect, and come to a line at which Python handles signals."""
    gc.collect()
    for _ in range(3):
        pass


@pytest.fixture
def reporting():
    """Provide reporting(report), which starts reports; returns the list of what was lost."""
    ends = []

    def start(report):
        lost = []
        ends.append(report_collections(report, lost.append))
        return lost

    others = list(gc.callbacks)
    gc.callbacks.clear()  # hypothesis has one in Python, which loses a signal
    yield start
    for end in ends:
        end()
    left, gc.callbacks[:] = list(gc.callbacks), others
    assert not left


@pytest.fixture
def unraisable(monkeypatch):
    """Collect what Python would print and drop."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


def test_both_ends_are_reported(reporting):
    seen = []
    lost = reporting(lambda phase, about: seen.append((phase, about["generation"])))
    gc.collect(0)
    gc.collect()
    assert (seen, lost) == ([("start", 0), ("stop", 0), ("start", 2), ("stop", 2)], [])


def test_a_fault_is_noted_and_the_reports_go_on(reporting, unraisable):
    seen = []

    def report(phase, about):
        seen.append(phase)
        raise ValueError(phase)

    lost = reporting(report)
    gc.collect()
    assert [str(err) for err in lost] == seen == ["start", "stop"]
    assert unraisable == []


@pytest.mark.parametrize("moment", ["start", "stop"])
def test_ctrl_c_in_a_report_reaches_the_caller(reporting, unraisable, moment):
    seen = []

    def report(phase, about):
        seen.append(phase)
        if seen.count(moment) == 1 and phase == moment:
            signal.raise_signal(signal.SIGINT)

    lost = reporting(report)
    with pytest.raises(KeyboardInterrupt):
        collect()
    assert (lost, unraisable, seen[:1]) == ([], [], ["start"])


class PendingSignal(functools.partial):
    """Its end in a collection is a signal, without a line of Python."""

    __del__ = functools.partial.__call__


def test_ctrl_c_during_a_collection_reaches_the_caller(reporting, unraisable):
    seen = []
    lost = reporting(lambda phase, about: seen.append(phase))
    one = PendingSignal(_thread.interrupt_main, signal.SIGINT)
    one.itself = one
    del one
    with pytest.raises(KeyboardInterrupt):
        collect()
    assert (lost, unraisable, seen[:1]) == ([], [], ["start"])


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="there are no timers here")
def test_a_timeout_of_the_programs_own_reaches_it(reporting, unraisable):
    def handler(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, handler)
    come = [signal.SIGALRM]
    lost = reporting(lambda phase, about: come and signal.raise_signal(come.pop()))
    try:
        with pytest.raises(TimeoutError):
            collect()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (lost, unraisable) == ([], [])
