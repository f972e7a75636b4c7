"""Traced programs have the same values, exceptions and random numbers."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.host_safety.process_state import state, state_differences
from tests.host_safety.programs import PIECES, differences, run_program

PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(PIECES)), st.integers(0, 5), st.booleans()),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(
    max_examples=120,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(PROGRAMS)
def test_a_program_does_the_same_with_a_trace(program):
    before = state()
    without = run_program(program, traced=False)
    assert differences(run_program(program, traced=True), without) == []
    assert state_differences(before) == []


@pytest.mark.parametrize("piece", PIECES)
def test_each_piece_does_the_same_with_a_trace(piece):
    for number in range(3):
        program = [("step", 0, True), (piece, number, True), (piece, number, False)]
        without = run_program(program, traced=False)
        assert len(without) > 6  # or it shows nothing
        assert differences(run_program(program, traced=True), without) == []
