"""mamba-ssm: the host code of `selective_scan_cuda`.

csrc/selective_scan/selective_scan.cpp of https://github.com/state-spaces/mamba/tree/e9594ce
"""

# ruff: noqa: FBT001, N803, N806, PLR0913 - arguments and names as the module has them
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nbmem.virtual.kernel_rules import KernelRules

CHUNK = 2048
"""Positions of a text after which a state is saved for backward."""


def forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    bias: Tensor | None, softplus: bool, *rest: Any,
) -> list[Tensor]:  # fmt: skip
    """Run the host code of `selective_scan_fwd`."""
    gated = None if z is None else torch.empty_like(z)
    out = torch.empty_like(delta)
    batch, width, length = u.size()
    kept = (batch, width, -(-length // CHUNK), 2 * A.size(1))
    states = torch.empty(kept, dtype=A.dtype, device=u.device)
    return [out, states] if gated is None else [out, states, gated]


def backward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    bias: Tensor | None, dout: Tensor, states: Tensor | None, out: Tensor | None,
    dz: Tensor | None, softplus: bool, again: bool, *rest: Any,
) -> list[Tensor | None]:  # fmt: skip
    """Run the host code of `selective_scan_bwd`."""
    gated = None
    if z is not None:
        dz = torch.empty_like(z) if dz is None else dz
        gated = torch.empty_like(out) if again and out is not None else None
    du, ddelta, dA = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(A)
    dB, dC = (
        torch.zeros_like(one, dtype=torch.float32 if one.dim() >= 3 else None) for one in (B, C)
    )
    dD, dbias = (None if one is None else torch.zeros_like(one) for one in (D, bias))
    results = [du, ddelta, dA, dB.to(B.dtype), dC.to(C.dtype), dD, dbias]
    return [*results, *([dz] if z is not None else []), *([gated] if again else [])]


RULES = KernelRules(modules={"selective_scan_cuda": {"fwd": forward, "bwd": backward}})
