"""What all tests share: those of a real card or of torch are skipped where there is none."""

from __future__ import annotations

import functools
import importlib.util

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
    no_torch = importlib.util.find_spec("torch") is None
    for item in items:
        if no_torch and item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="needs torch, which is not installed"))
        if item.get_closest_marker("gpu") and (reason := why_no_card()):
            item.add_marker(pytest.mark.skip(reason=f"needs a real card: {reason}"))
