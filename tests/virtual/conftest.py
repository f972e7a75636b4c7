"""Fixtures of a virtual card that is always removed afterwards."""

import warnings

import pytest

from nbmem import virtual


@pytest.fixture
def gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virtual.NbmemWarning)
        with virtual.activated("H100 80GB") as active:
            yield active


@pytest.fixture
def card(gpu):
    """Provide a card with the workspace of cuBLAS."""
    import torch

    x = torch.ones(8, 8, device="cuda", requires_grad=True)
    (x @ x).sum().backward()
    return gpu


@pytest.fixture(autouse=True)
def _no_card_left_behind():
    yield
    virtual.deactivate()
