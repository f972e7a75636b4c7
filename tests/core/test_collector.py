"""The garbage collector is as it was, whatever ends the work and at whatever line."""

import contextlib
import gc

import pytest

from nbmem.core.collector import without_collector
from tests.faults.injector import Fault, functions

(TARGET,) = functions("nbmem.core.collector")


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
