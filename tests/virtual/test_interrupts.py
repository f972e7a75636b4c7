"""Ctrl-C on the virtual card, at any line."""

import signal
import sys
import time

import torch

from nbmem.virtual.hardware import deferred_free
from nbmem.virtual.patches import activation
from nbmem.virtual.tensors.storages import DIES_FOR_GOOD

FILES = ("nbmem/virtual/", "nbmem/allocator/")


class TooLongError(Exception):
    """The exception of a timeout."""


def too_long(_number, _frame):
    raise TooLongError


class Interrupting:
    """Send a signal at the n-th line of nbmem."""

    def __init__(self, at, signal_number=signal.SIGINT):
        self.at, self.seen, self.signal_number = at, 0, signal_number

    def __call__(self, frame, event, _arg):
        if not any(part in frame.f_code.co_filename for part in FILES):
            return None
        if event in ("call", "line"):
            self.seen += 1
            if self.seen == self.at:
                signal.raise_signal(self.signal_number)
        return self


def step(x):
    y = x * 2
    del y
    return x + 1


def interrupted(x, at, signal_number=signal.SIGINT):
    """Return the lines that ran and whether the signal's exception was raised."""
    tracer = Interrupting(at, signal_number)
    sys.settrace(tracer)
    try:
        step(x)
    except (KeyboardInterrupt, TooLongError):
        return tracer.seen, True
    finally:
        sys.settrace(None)
    return tracer.seen, False


def test_an_interrupt_at_any_line_comes_out_and_no_block_stays(gpu, capsys):
    x = torch.randn(1024, device="cuda")
    step(x)
    before = torch.cuda.memory_allocated()
    lines, _ = interrupted(x, 0)
    assert lines > 100
    for at in range(1, lines):
        try:
            came = interrupted(x, at)[1]
            for _ in range(3):  # where the interpreter next looks for one
                pass
        except KeyboardInterrupt:
            came = True
        assert came, at
        assert torch.cuda.memory_allocated() == before, at
    assert "Exception ignored" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_card_is_usable_after_a_timeout_at_any_line(gpu):
    x = torch.randn(1024, device="cuda")
    step(x)
    before = torch.cuda.memory_allocated()
    lines, _ = interrupted(x, 0)
    handler = signal.signal(signal.SIGALRM, too_long)
    try:
        for at in range(1, lines, 3):
            raised = interrupted(x, at, signal.SIGALRM)[1]
            assert raised, at
            assert signal.getsignal(signal.SIGALRM) is too_long
            assert torch.cuda.memory_allocated() == before, at
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_storage_is_freed_on_time_without_python_code(gpu):
    torch.cuda.memory._record_memory_history(max_entries=100, context=None)
    x = torch.randn(1024, device="cuda")
    tracer = Interrupting(0)
    sys.settrace(tracer)
    del x
    sys.settrace(None)
    assert tracer.seen == 0 or not DIES_FOR_GOOD
    gone = time.time_ns() // 1000
    assert torch.cuda.memory_allocated() == 0
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    freed = [event for event in events if event["action"] == "free_completed"]
    assert freed[-1]["time_us"] <= gone
    assert not any(block() is None for block in gpu_blocks())


def gpu_blocks():
    return activation.activation().mode.storages._blocks.values()


def test_a_frozen_clock_is_the_programs_own(gpu, monkeypatch):
    def frozen():
        raise AssertionError("asked for the program's time")

    monkeypatch.setattr(time, "time_ns", frozen)
    monkeypatch.setattr(time, "perf_counter_ns", frozen)
    torch.cuda.memory._record_memory_history(max_entries=100, context=None)
    x = torch.randn(1024, device="cuda")
    with torch.profiler.record_function("part"):
        del x
    torch.cuda.Event(enable_timing=True).record()
    torch.cuda.memory._record_memory_history(enabled=None)


def test_work_is_whole_only_where_an_interrupt_can_be_delivered():
    assert (
        deferred_free.defer_interrupt(lambda: signal.getsignal(signal.SIGINT))()
        is deferred_free._hold
    )
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert (
            deferred_free.defer_interrupt(lambda: signal.getsignal(signal.SIGINT))()
            is signal.SIG_IGN
        )
    finally:
        signal.signal(signal.SIGINT, ignored)
