"""Advice after an untraced failure, by torch's allocator."""

import pytest

from nbmem.report.analysis.oom.untraced import TRACE_IT, untraced


@pytest.mark.parametrize("allocator", ["native", "cudaMallocAsync", "pluggable"])
def test_the_simulator_is_promised_only_where_it_can_help(allocator):
    (note,) = untraced(
        None, None, stack=(), layer=None, storages=(), caught=True, allocator=allocator
    ).notes
    assert (note == TRACE_IT) == (allocator == "native")
    assert ("tries in its simulator" in note) == (allocator == "native")
    assert allocator == "native" or f"another allocator here ({allocator})" in note
