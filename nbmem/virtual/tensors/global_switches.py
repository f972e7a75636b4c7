"""What a program switches for the whole process, as far as kernels' memory depends on it."""

from __future__ import annotations

from typing import Any

import torch

_precision = getattr(torch._C, "_get_fp32_precision_getter", None)
"""From torch 2.9 on convolutions have a precision of their own, and the old question is refused
once it is not that of the recurrent layers."""


def convolves_in_tf32() -> bool:
    """Whether cuDNN may round the float32 of a convolution."""
    if _precision is None:
        return bool(torch._C._get_cudnn_allow_tf32())
    return bool(_precision("cuda", "conv") == "tf32")


def is_deterministic() -> bool:
    """Whether cuDNN must add up in one order, by its own switch or by that of all libraries."""
    return torch._C._get_cudnn_deterministic() or torch._C._get_deterministic_algorithms()


def switches() -> tuple[Any, ...]:
    """All of them: with another one, the same call may take other memory."""
    return (
        torch._C._get_deterministic_algorithms(),
        torch._C._get_cudnn_deterministic(),
        convolves_in_tf32(),
    )
