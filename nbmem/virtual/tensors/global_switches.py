"""Process-wide switches of torch that change kernels' memory."""

from __future__ import annotations

from typing import Any

import torch

_precision = getattr(torch._C, "_get_fp32_precision_getter", None)
"""From torch 2.9 on convolutions have a precision of their own. The old getter then raises if it
differs from that of the recurrent layers."""


def convolves_in_tf32() -> bool:
    """Return whether cuDNN may round float32 convolutions to TF32."""
    if _precision is None:
        return bool(torch._C._get_cudnn_allow_tf32())
    return bool(_precision("cuda", "conv") == "tf32")


def is_deterministic() -> bool:
    """Return whether cuDNN must be deterministic, by either switch.

    cuDNN has a switch of its own, and there is one for all libraries.
    """
    return torch._C._get_cudnn_deterministic() or torch._C._get_deterministic_algorithms()


def switches() -> tuple[Any, ...]:
    """Return all of them; they are part of a call's cache key."""
    return (
        torch._C._get_deterministic_algorithms(),
        torch._C._get_cudnn_deterministic(),
        convolves_in_tf32(),
    )
