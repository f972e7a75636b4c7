"""Threads that train under a trace: same values, no crash."""

import pytest

pytest.importorskip("torch")

from tests.host_safety import threads

STEPS = {"cpu": 24, "cuda": 8}
"""A fraction of what `python -m tests.host_safety.threads` does, where a fault is certain."""
SCENES = [name for name in threads.SCENES if name != "asked"]


@pytest.mark.slow
@pytest.mark.parametrize("device", STEPS)
def test_threads_train_under_a_trace_as_without(device):
    outcome = threads.in_a_process(SCENES, device, seed=1, steps=STEPS[device])
    assert outcome.status == 0, outcome.output
