"""Programs that look suspicious and are as they should be get no tip."""

import pytest

from tests.tips.reports.catalogue import FOLDER
from tests.tips.reports.healthy_runs import CARD

PROGRAMS = {path.stem: path for path in sorted((FOLDER / "programs" / "healthy").glob("*.py"))}
CI = {
    "average_of_weights",
    "deque_that_is_not_full_yet",
    "folds_released",
    "gan_detached",
    "kv_cache_in_generation",
    "lookup_cache_with_a_limit",
}
"""Programs that each run of the tests takes; `long` takes all others, too."""


def judged(name):
    """Return a program as a parameter with its marks."""
    return pytest.param(name, marks=[] if name in CI else [pytest.mark.long])


@pytest.mark.parametrize("name", [judged(name) for name in PROGRAMS])
def test_a_healthy_program_gets_no_tip(name):
    pytest.importorskip("torch", reason="the programs are torch programs")
    from tests.tips.reports.run import run_program, tips_of

    found = run_program(PROGRAMS[name].read_text(encoding="utf-8"), name, CARD)
    assert [(tip["rule"], tip["title"]) for tip in tips_of(found)] == []
