"""A small virtual card for each test."""

from __future__ import annotations

import warnings

import pytest

from nbmem import virtual


@pytest.fixture
def card():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virtual.NbmemWarning)
        with virtual.activated("T4") as active:
            yield active
