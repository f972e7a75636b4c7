"""Deep calls share one chunk of Python's stack."""

import resource
import sys

import pytest

from nbmem.virtual.patches.compiled.stack_size import with_large_stack

CALLS = 500


def no_op():
    pass


def most_pages(depth):
    """Return the most pages that a loop of calls takes, by depth."""
    if depth == 0:
        return 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        no_op()
    here = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return max(here, most_pages(depth - 1))


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages as Linux does")
def test_no_stack_depth_takes_a_new_chunk_at_each_call():
    assert most_pages(300) >= CALLS
    assert with_large_stack(lambda: most_pages(300)) < CALLS / 2


def test_what_work_returns_and_raises_comes_through():
    assert with_large_stack(lambda: 3) == 3
    with pytest.raises(KeyError):
        with_large_stack(lambda: {}["no such"])
