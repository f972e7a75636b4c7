"""A program does in a traced block what it does without: values, exceptions, randomness, order."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.guest.left import left, state
from tests.guest.programs import PIECES, differences, told

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
    without = told(program, traced=False)
    assert differences(told(program, traced=True), without) == []
    assert left(before) == []


@pytest.mark.parametrize("piece", PIECES)
def test_each_piece_does_the_same_with_a_trace(piece):
    for number in range(3):
        program = [("step", 0, True), (piece, number, True), (piece, number, False)]
        without = told(program, traced=False)
        assert len(without) > 6  # or it shows nothing
        assert differences(told(program, traced=True), without) == []
