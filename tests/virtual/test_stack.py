"""Deep calls share one piece of Python's stack."""

import resource
import sys

import pytest

from nbmem.virtual.patches.compiled.stack_size import with_large_stack

CALLS = 500


def nothing():
    pass


def most_pages(depth):
    """The most pages that a loop of calls takes, at the worst of some depths."""
    if depth == 0:
        return 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        nothing()
    here = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return max(here, most_pages(depth - 1))


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages as Linux does")
def test_no_depth_is_a_pieces_end():
    assert most_pages(300) >= CALLS
    assert with_large_stack(lambda: most_pages(300)) < CALLS / 2


def test_what_work_returns_and_raises_comes_through():
    assert with_large_stack(lambda: 3) == 3
    with pytest.raises(KeyError):
        with_large_stack(lambda: {}["no such"])
