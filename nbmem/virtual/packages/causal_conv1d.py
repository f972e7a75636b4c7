"""causal-conv1d: the host code of `causal_conv1d_cuda`.

All results are arguments of its functions.

csrc/causal_conv1d.cpp of https://github.com/Dao-AILab/causal-conv1d/tree/0d2252d
"""

# ruff: noqa: PLR0913 - arguments as the module has them
from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from nbmem.virtual.kernel_rules import KernelRules


def forward(*arguments: Any) -> None:
    """Run `causal_conv1d_fwd`, which writes into its arguments."""


def update(*arguments: Any) -> None:
    """Run `causal_conv1d_update`, which writes into its arguments."""


def backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, sequences: Tensor | None,
    states: Tensor | None, dfinal: Tensor | None, dx: Tensor, dweight: Tensor,
    dbias: Tensor | None, *rest: Any,
) -> None:  # fmt: skip
    """Run `causal_conv1d_bwd`; deterministic sums need partial buffers."""
    by_channels = x.stride(1) == 1 and x.stride(2) > 1
    if not by_channels and dout.stride(2) != 1:
        dout = dout.contiguous()
    elif by_channels and dout.stride(1) != 1:
        dout = dout.transpose(-1, -2).contiguous().transpose(-1, -2)
    if not _in_order():
        return
    batch, width, length = x.size()
    chunk = 64 if length <= 128 else 128
    parts = (batch, -(-length // chunk)) if by_channels else (batch,)
    made = [(dweight, (*parts, width, weight.size(-1)))]
    if dbias is not None:
        made.append((dbias, (*parts, width)))
    sums = [torch.zeros(size, dtype=torch.float32, device=x.device) for _, size in made]
    for (grad, _), apart in zip(made, sums, strict=True):
        grad.add_(apart.sum(tuple(range(len(parts)))))


def _in_order() -> bool:
    """Return what `use_deterministic_mode` does."""
    asked = os.environ.get("CAUSAL_CONV1D_DETERMINISTIC")
    return asked == "1" if asked in {"0", "1"} else torch.are_deterministic_algorithms_enabled()


RULES = KernelRules(
    modules={
        "causal_conv1d_cuda": {
            "causal_conv1d_fwd": forward,
            "causal_conv1d_bwd": backward,
            "causal_conv1d_update": update,
        }
    }
)
