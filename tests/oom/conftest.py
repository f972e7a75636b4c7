"""A small virtual card for each test."""

import warnings

import pytest

from nbmem import virtual
from nbmem.capture.graphs.saved_tensors import why_unreadable


@pytest.fixture
def card():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virtual.NbmemWarning)
        with virtual.activated("T4") as active:
            yield active


@pytest.fixture
def named_graphs():
    """Skip where torch does not name saved tensors, up to torch 2.9."""
    pytest.importorskip("torch")
    if reason := why_unreadable():
        pytest.skip(reason)
