"""The garbage collector is restored after any interruption."""

import contextlib
import gc

import pytest

from nbmem.core.runtime.garbage_collector import rare_collections, without_collector
from tests.faults.injector import Fault, functions

TARGET = next(
    t
    for t in functions("nbmem.core.runtime.garbage_collector")
    if t.name.endswith("without_collector")
)


def test_nothing_is_collected_meanwhile():
    assert without_collector(gc.isenabled) is False
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        assert without_collector(gc.isenabled) is False
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("seed", range(30))
def test_an_interrupt_at_any_line_leaves_it_on(seed):
    fault = Fault(TARGET, KeyboardInterrupt, at="line", seed=seed)
    with fault, contextlib.suppress(KeyboardInterrupt):
        without_collector(list)
    assert gc.isenabled()
    assert fault.hits <= 1


def test_collections_are_rare_for_a_time_and_as_they_were_afterwards():
    before = gc.get_threshold()
    with contextlib.suppress(KeyError), rare_collections():
        assert gc.get_threshold() == (100 * before[0], *before[1:])
        raise KeyError
    assert gc.get_threshold() == before
