"""Tracebacks show no frame of the virtual card."""

import contextlib
import io
import logging
import subprocess
import sys
import traceback
import weakref
from types import FunctionType

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

from nbmem import virtual
from nbmem.virtual import frames


def _shapes():
    return torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")


def _too_much():
    return torch.empty(1 << 45, device="cuda")


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("in a function")


def _in_function():
    _Fails.apply(torch.ones(3, device="cuda", requires_grad=True)).sum().backward()


def _in_hook():
    made = torch.ones(3, device="cuda", requires_grad=True) * 2
    made.register_hook(lambda _: 1 / 0)
    made.sum().backward()


def _in_layer():
    return nn.Linear(3, 4).cuda()(torch.ones(2, 5, device="cuda"))


def _under_autocast():
    with torch.autocast("cuda"):
        return nn.Conv2d(3, 4, 3).cuda()(torch.ones(2, 5, 8, 8, device="cuda"))


def _twice():
    loss = (torch.ones(3, device="cuda", requires_grad=True) * 2).prod()
    loss.backward()
    loss.backward()


def _caused():
    try:
        _shapes()
    except RuntimeError as err:
        raise ValueError("chained") from err


def _in_context():
    try:
        _in_layer()
    except RuntimeError:
        _too_much()


def _grouped():
    try:
        _too_much()
    except RuntimeError as err:
        raise ExceptionGroup("several", [err]) from None


def _no_card():
    return torch.ones(3, device="cuda").to("cuda:4")


def _at_index():
    return torch.ones(3, device="cuda")[5]


def _ragged():
    return torch.tensor([1, [2]], device="cuda")


CASES = [
    *(_shapes, _too_much, _in_function, _in_hook, _in_layer, _under_autocast, _twice, _caused),
    *(_in_context, _grouped, _no_card, _at_index, _ragged),
]


def _named(text):
    return frames._OWN in text or "skipping hidden" in text


@pytest.mark.parametrize("case", CASES)
def test_no_frame_is_shown_by_whatever_goes_through_a_traceback(gpu, case):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each case has its own
        case()
    err = caught.value
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.emit(logging.LogRecord("x", 40, "x", 1, "x", (), (type(err), err, err.__traceback__)))
    shown = "".join(traceback.format_exception(err))
    assert not _named(shown)
    assert case.__name__ in shown
    assert not _named("".join(traceback.format_tb(err.__traceback__)))
    assert not _named(written.getvalue())


@pytest.mark.parametrize("case", [_shapes, _caused, _in_hook])
def test_an_operator_leaves_no_frame_in_the_traceback_itself(gpu, case):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each case has its own
        case()
    step = caught.value.__traceback__
    while step is not None:
        assert step.tb_frame.f_code.co_name != "__torch_dispatch__"
        step = step.tb_next


def test_python_shows_the_program_alone():
    """At its end, at a thread's, and where a finalizer fails."""
    code = """if True:
        import threading
        import torch
        from nbmem import virtual

        def fails():
            torch.nn.Linear(3, 4).cuda()(torch.ones(2, 5, device="cuda"))

        class Finalized:
            def __del__(self):
                fails()

        virtual.activate("T4")
        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()
        Finalized()
        fails()
    """
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.count("mat1 and mat2") == 3
    assert not _named(ended.stderr)


def test_what_a_signals_handler_raises_inside_of_an_operator_keeps_its_frames(gpu):
    def handler():
        raise KeyboardInterrupt

    gpu.oom_observers.append(lambda *_: handler())
    with pytest.raises(KeyboardInterrupt) as caught:
        _too_much()
    names = [step.name for step in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["<lambda>", "handler"]


@pytest.mark.parametrize("mode", ["Context", "Verbose", "Minimal", "Plain"])
def test_a_shell_shows_and_keeps_the_program_alone(gpu, mode):
    shell = InteractiveShell()
    shell.user_ns.update({case.__name__: case for case in CASES}, nn=nn, torch=torch)
    shell.run_cell(f"%xmode {mode}")
    for case in (_too_much, _in_layer, _in_context, _in_hook, _no_card):
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            shell.run_cell(f"{case.__name__}()")
            shell.run_cell("%tb")
        assert "Error" in written.getvalue()
        assert not _named(written.getvalue()), written.getvalue()
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(sys.last_traceback)]
        step, held = sys.last_traceback, []
        while step is not None:  # as %debug goes through it
            held.append(step.tb_frame.f_code.co_filename)
            step = step.tb_next
        assert held == files
    del gpu, sys.last_traceback, sys.last_value, sys.last_type


def test_a_hook_that_a_program_has_set_meanwhile_stays(monkeypatch):
    def mine(*_what):
        """Show nothing."""

    before = sys.unraisablehook
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with virtual.activated("T4"):
        sys.excepthook = mine
        assert sys.unraisablehook is not before
    assert sys.excepthook is mine
    assert sys.unraisablehook is before


def test_frames_that_are_left_out_hold_nothing():
    with virtual.activated("T4"):
        x = torch.zeros(1 << 20, device="cuda")
        watch = weakref.ref(x)

        def calls_back(tensor):
            raise ValueError(tensor.shape)

        source = "def own(tensor, call):\n    call(tensor)"
        own = FunctionType(compile(source, frames.__file__, "exec").co_consts[0], {})
        try:
            own(x, calls_back)
        except ValueError as err:
            error = err
        error.__traceback__ = frames.without_own(error.__traceback__)
        names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
        assert names == ["test_frames_that_are_left_out_hold_nothing", "calls_back"]
        traceback.clear_frames(error.__traceback__.tb_next)
        del x
        assert watch() is None
