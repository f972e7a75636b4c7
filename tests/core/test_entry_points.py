"""Deferred interrupts are delivered when the outermost call ends."""

import functools
import gc
import signal
import time
from types import SimpleNamespace

import pytest

from nbmem.capture.record.recorder import Recorder
from nbmem.core.runtime.entry_points import entry
from nbmem.frontends.notebook.error_boundary import error_boundary


@pytest.fixture(autouse=True)
def no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def hears_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted():
    raise KeyboardInterrupt


def faulty():
    raise ZeroDivisionError


SWALLOWS = {
    "error_boundary": error_boundary,
    "guard": functools.partial(Recorder.guard, SimpleNamespace(_on_fault=lambda *_: None)),
    "_kept": functools.partial(Recorder._kept, SimpleNamespace(_on_fault=lambda *_: None)),
}


@pytest.mark.parametrize("fault", [interrupted, faulty])
@pytest.mark.parametrize("passed_over_by", SWALLOWS)
def test_an_interrupt_is_delivered_at_once_after_a_swallowed_fault(passed_over_by, fault):
    @entry("this")
    def called():
        try:
            with SWALLOWS[passed_over_by]("a part"):
                fault()
        finally:
            interrupted()

    came = []
    for _ in range(3):
        try:
            called()
            time.sleep(0)  # where Python asks for signals
        except KeyboardInterrupt as err:
            came.append(err.__traceback__.tb_next)
    assert came == [None] * 3  # each in this frame


def test_an_interrupt_is_delivered_at_once_where_nbmem_retains_an_exception():
    kept = []

    @entry("this", on_fault=lambda _part, err: kept.append(err))
    def inner():
        faulty()

    @entry("that")
    def outer():
        inner()
        interrupted()

    came = False
    try:
        outer()
        time.sleep(0)
    except KeyboardInterrupt:
        came = True
    assert came
    assert [type(err) for err in kept] == [ZeroDivisionError]


def test_an_exception_caught_before_the_call_keeps_its_traceback():
    @entry("this", on_fault=lambda _part, _err: None)
    def called():
        faulty()

    try:
        interrupted()
    except KeyboardInterrupt as err:
        called()
        names = []
        way = err.__traceback__
        while way is not None:
            names.append(way.tb_frame.f_code.co_name)
            way = way.tb_next
    assert names[-1] == "interrupted"
