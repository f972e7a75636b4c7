"""flex_attention as the fused kernel that torch.compile makes of it: no scores are written.

Known limit: gradients of tensors that a score_mod captures (a learned bias) are not made.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_higher_order_ops/flex_attention.py
"""

from __future__ import annotations

import typing
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import FlexAttentionHOP

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch

_true_call = FlexAttentionHOP.__call__
_RESULTS = len(typing.get_args(_true_call.__annotations__["return"]))
"""The output, the logarithms of the sums, and since torch 2.10 the largest scores."""


class _Fused(torch.autograd.Function):
    """One kernel forward, one backward with a scratch row for each query."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        size = (*query.size()[:-1], value.size(-1))
        order = sorted(range(query.dim()), key=query.stride().__getitem__, reverse=True)
        out = query.new_empty([size[d] for d in order]).permute(
            [order.index(d) for d in range(query.dim())]
        )
        rows = [query.new_empty(size[:-1], dtype=torch.float32) for _ in range(_RESULTS - 1)]
        ctx.save_for_backward(query, key, value, out, rows[0])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*rows[1:])
        return out, *rows

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> tuple[torch.Tensor, ...]:
        *inputs, _out, row = ctx.saved_tensors
        delta = torch.empty_like(row)
        gradients = tuple(torch.empty_like(tensor) for tensor in inputs)
        del delta
        return gradients


def _call(
    self: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
) -> Any:
    if not is_virtual(query):
        return _true_call(self, query, key, value, *rest, **more)
    if torch.is_autocast_enabled("cuda"):
        wanted = torch.get_autocast_dtype("cuda")
        query, key, value = (tensor.to(wanted) for tensor in (query, key, value))
    return _Fused.apply(query, key, value)


def flex_patches() -> list[Patch]:
    """The operator's call, which user code reaches through torch.nn.attention alone."""
    return [Patch(FlexAttentionHOP, "__call__", _call)]
