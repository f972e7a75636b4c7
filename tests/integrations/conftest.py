"""A virtual card, and a small network whose bytes are easy to count."""

import warnings

import pytest


@pytest.fixture
def gpu():
    pytest.importorskip("torch", reason="the virtual card answers torch")
    from nbmem import virtual

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virtual.NbmemWarning)
        with virtual.activated("T4") as active:
            yield active


@pytest.fixture
def trace(gpu):
    """A trace in which 3 MiB lived, of which 1 MiB is left."""
    import torch

    import nbmem

    with nbmem.trace("cell") as trace:
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        torch.empty(2 << 20, dtype=torch.uint8, device="cuda")
    assert kept.numel() == 1 << 20
    return trace
