"""Golden programs: the operations of five released allocators."""

import pytest

from tests.allocator.programs import Runner, golden, without_order_of_frees

RELEASES = ("2.6.0", "2.9.1", "2.11.0", "2.12.0", "2.13.0")


@pytest.mark.parametrize("release", RELEASES)
def test_every_address_counter_and_entry_is_that_of_the_released_allocator(release):
    programs = golden(release)
    assert len(programs) >= 16
    for number, program in enumerate(programs):
        runner = Runner(program["total"], release)
        for index, (line, expected) in enumerate(
            zip(program["ops"], program["result"], strict=True)
        ):
            found = runner.row(runner.step(line))
            assert found == expected, (number, program["conf"], index, line)
        expected = without_order_of_frees(program["trace"])
        assert without_order_of_frees(runner.trace) == expected, (number, program["conf"])


def test_a_release_newer_than_all_that_were_checked_behaves_like_the_newest():
    program = golden("2.13.0")[0]
    runner = Runner(program["total"], "3.1.0+cu140")
    for line, expected in zip(program["ops"], program["result"], strict=True):
        assert runner.row(runner.step(line)) == expected
