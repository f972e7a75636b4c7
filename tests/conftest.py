"""What all tests share: those of a real card are left out, with the reason, where there is none."""

from __future__ import annotations

import functools

import pytest


@functools.cache
def why_no_card() -> str | None:
    """The reason why tests of a real card cannot run here; None if they can."""
    import pynvml

    try:
        pynvml.nvmlInit()
        cards = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as err:
        return f"no NVIDIA driver answers ({type(err).__name__})"
    if not cards:
        return "the NVIDIA driver sees no card"
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else f"torch {torch.__version__} cannot use the card"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and (reason := why_no_card()):
            item.add_marker(pytest.mark.skip(reason=f"needs a real card: {reason}"))
