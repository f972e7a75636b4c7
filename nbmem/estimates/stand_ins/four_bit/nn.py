"""Linear layers that hold the tensors of bitsandbytes' 4-bit ones.

Weights are packed, two in a byte, with a scale for each 64. The scales are quantized, too: a byte
each, with a float for each 256. A product of many rows unpacks the whole weight for a moment.
https://github.com/bitsandbytes-foundation/bitsandbytes/blob/0.50.2/bitsandbytes/backends/cuda/ops.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn import functional

BLOCK, NESTED = 64, 256
"""Weights of a scale, and scales of a scale."""
MOST_ROWS = 1536
"""Rows of an input up to which a kernel may read packed weights; that depends on the card."""
FEW_ROWS = 4
"""Rows up to which it does on every card."""


class Params4bit(nn.Parameter):
    """Packed weights, with the class name by which the ledger knows them."""

    quant_state: Any


class Linear4bit(nn.Module):
    """A linear layer whose weight is packed when it is moved to a card."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        compute_dtype: torch.dtype,
        quant_type: str,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._dtype = compute_dtype
        self.quant_type = quant_type
        self.weight: Any = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Linear4bit:  # noqa: FBT001, FBT002 - torch's signature
        super()._apply(fn, recurse)
        if self.weight.is_cuda and not isinstance(self.weight, Params4bit):
            self._pack()
        return self

    def _pack(self) -> None:
        """Replace the weight by a packed one, with the requests of bitsandbytes."""
        count = self.weight.numel()
        scales = -(-count // BLOCK)
        absmax = torch.empty(scales, dtype=torch.float32, device="cuda")
        packed = torch.empty((count + 1) // 2, 1, dtype=torch.uint8, device="cuda")
        values = torch.empty(16, device="cuda")
        offset = absmax.mean()
        absmax = absmax - offset
        shared = _shared_code()
        outer = torch.empty(-(-scales // NESTED), device="cuda")
        weight = Params4bit(packed, requires_grad=False)
        weight.quant_state = SimpleNamespace(
            absmax=torch.empty(scales, dtype=torch.uint8, device="cuda"),
            offset=offset,
            code=values,
            state2=SimpleNamespace(absmax=outer, code=shared.clone(), shared=shared),
        )
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the weight."""
        given = x.dtype
        bias = self.bias
        if bias is not None and bias.dtype != self._dtype:
            bias.data = bias.data.to(self._dtype)
        state = self.weight.quant_state
        result = _Product.apply(x.to(self._dtype), self.weight, bias, state, self.out_features)
        return result.to(given)


_CODES: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


def _shared_code() -> torch.Tensor:
    """Return the 256 values of a byte, of which each layer has a copy, too."""
    device = torch.cuda.current_device()
    code = _CODES.get(device)
    if code is None:
        code = _CODES[device] = torch.empty(256, device="cuda")
    return code


def _unpack(weight: torch.Tensor, state: Any, shape: tuple[int, int], dtype: torch.dtype) -> Any:
    """Return a weight's values for one product."""
    absmax = torch.empty(state.absmax.shape, dtype=torch.float32, device=weight.device)
    absmax += state.offset
    return torch.empty(shape, dtype=dtype, device=weight.device)


class _Product(torch.autograd.Function):
    """A product with packed weights, which saves them and not its input."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - an operator's arguments
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, state: Any, rows: int
    ) -> torch.Tensor:
        """Multiply."""
        ctx.weight, ctx.state, ctx.shape = weight, state, (rows, x.shape[-1])
        if x.numel() // x.shape[-1] <= FEW_ROWS:
            return torch.empty((*x.shape[:-1], rows), dtype=x.dtype, device=x.device)
        return functional.linear(x, _unpack(weight, state, ctx.shape, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Multiply the gradient by the weight, unpacked again."""
        (grad,) = grads
        whole = _unpack(ctx.weight, ctx.state, ctx.shape, grad.dtype)
        bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        return torch.matmul(grad, whole), None, bias, None, None
