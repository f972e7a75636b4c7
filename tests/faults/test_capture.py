"""Faults in capture: nothing of the user's changes, and a note is left."""

import sys

import pytest

pytest.importorskip("torch", reason="capture watches torch")

from nbmem.capture.patches import compilations
from tests.faults import capture

PARTS = 2
"""Tests, for as many workers."""
RARELY = 48
"""One function in so many is tried here; `python -m tests.faults.capture` tries all."""


@pytest.fixture(scope="module")
def targets():
    with capture.small_heap():
        yield capture.called_targets()


def test_a_notebook_without_a_fault_is_the_users_own():
    trial = capture.notebook()
    assert capture.failure_reason(trial, capture.run_without_nbmem(), "Exception") is None
    assert all(trial.sessions)


@pytest.mark.parametrize("part", range(PARTS))
def test_any_function_may_fail(targets, part):
    assert len(targets) > 400
    kinds = list(capture.ERRORS)
    lost = {}
    for count, target in enumerate(targets[part :: PARTS * RARELY]):
        error = kinds[count % len(kinds)]
        why, _ = capture.attempt(target, error)
        if why:
            lost[target.name, error] = why
    assert not lost


@pytest.mark.parametrize("error", capture.ERRORS)
@pytest.mark.parametrize(
    "name",
    [
        "nbmem.capture.record.recorder.Recorder.start",
        "nbmem.capture.record.recorder.Recorder.close",
        "nbmem.capture.record.recorder.Recorder.record_names_and_holders",
        "nbmem.capture.record.recorder.Recorder.freeze",
        "nbmem.capture.record.recording.Recording.runs",
        "nbmem.capture.record.hook_event_log.HookEventLog.forward_ends",
        "nbmem.capture.hooks.training_hooks.TrainingHooks.install",
        "nbmem.capture.torch_memory.allocator_history.HistoryProbe.take",
    ],
)
def test_the_stages_of_a_recording_may_fail(targets, name, error):
    target = next(one for one in targets if one.name == name)
    why, hits = capture.attempt(target, error)
    assert why is None
    assert hits


@pytest.fixture
def none_stays_with_the_compiler():
    yield
    handler = compilations._handler()
    for told in (handler.start_callbacks, handler.end_callbacks) if handler else ():
        told[:] = [one for one in told if not _is_ours(getattr(one, "__self__", None))]
        vars(handler).pop("clear", None)
    sys.meta_path[:] = [one for one in sys.meta_path if not _is_ours(one)]


def _is_ours(one):
    return isinstance(one, compilations.Compilations)


@pytest.mark.usefixtures("none_stays_with_the_compiler")
def test_what_stays_with_the_compiler_keeps_nothing_in_torch(targets):
    name = "nbmem.capture.patches.compilations.Compilations.stop_watching"
    target = next(one for one in targets if one.name == name)
    fault = capture.Fault(target, ZeroDivisionError)  # each time: nothing can take it out
    why = capture.failure_reason(capture.notebook(fault), capture.run_without_nbmem(), "Exception")
    assert fault.hits
    assert "torch" not in (why or "")
