"""flex_attention as the fused kernel that torch.compile makes of it.

The kernel writes no scores. Called without torch.compile, flex_attention writes them all, by
torch's own formulas, here as on a card.

Known limit: gradients of tensors that a score_mod captures (a learned bias) are not made.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_higher_order_ops/flex_attention.py
"""

from __future__ import annotations

import sys
import typing
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import FlexAttentionHOP
from torch.nn.attention.flex_attention import flex_attention

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.dispatch.tracing import is_faked
from nbmem.virtual.patches.patcher import Patch

_original_call = FlexAttentionHOP.__call__
_RESULTS = len(typing.get_args(_original_call.__annotations__["return"]))
"""The output, the logarithms of the sums, and since torch 2.10 the largest scores."""
hop: Any = sys.modules[FlexAttentionHOP.__module__]
_ALWAYS = 4
"""Arguments behind the tensors that are always given; the buffers of its functions may be not."""
_BY_HAND = flex_attention.__code__


class _Fused(torch.autograd.Function):
    """A fused kernel in forward and in backward.

    The backward has a scratch row with a number for each query.
    """

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


class _MathAttention(torch.autograd.Function):
    """Attention that writes all scores, in forward and in backward."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, ...]:
        out, *rows = hop.math_attention(query, key, value, *rest)
        out = hop._permute_strides(out, query.stride())
        ctx.save_for_backward(query, key, value, out, *rows)
        ctx.rest = rest
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*rows[1:])
        return out, *rows

    @staticmethod
    def backward(ctx: Any, gradient: Any, of_row: Any, *_others: Any) -> tuple[Any, ...]:
        score_mod, *rest = ctx.rest

        def of_score(score: Any, *others: Any) -> Any:
            place, given, held = others[:4], others[4], others[5:]
            _, pull = torch.func.vjp(lambda one: score_mod(one, *place, *held), score)
            return [*pull(given), *[None] * len(place + held)]

        inputs_out_and_row = ctx.saved_tensors[:5]
        given = (*inputs_out_and_row, gradient, of_row, score_mod, of_score, *rest)
        *made, _captured = hop.sdpa_dense_backward(*given)
        return (*made, *[None] * len(ctx.rest))


def _is_compiled() -> bool:
    """Return whether the program has compiled the operator's caller.

    torch.compile's wrapper is then among the callers. flex_attention itself compiles the call for
    its own checks, which does not count.
    """
    frame, wrappers, by_hand = sys._getframe(2), 0, False
    while frame is not None:
        code = frame.f_code
        wrappers += code.co_name == "compile_wrapper"
        by_hand = by_hand or code is _BY_HAND
        frame = frame.f_back  # type: ignore[assignment]
    return not by_hand or wrappers > 1


def _call(
    self: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
) -> Any:
    if is_faked() or not is_virtual(query):  # to C++, a fake tensor of a card is on it
        return _original_call(self, query, key, value, *rest, **more)
    if torch.is_autocast_enabled("cuda"):
        wanted = torch.get_autocast_dtype("cuda")
        query, key, value = (tensor.to(wanted) for tensor in (query, key, value))
    if _is_compiled():
        return _Fused.apply(query, key, value)
    given = (*rest, *more.values())
    return _MathAttention.apply(query, key, value, *given, *((), ())[len(given) - _ALWAYS :])


def flex_patches() -> list[Patch]:
    """Return the patch of the flex_attention operator's call.

    User code reaches the operator through torch.nn.attention alone.
    """
    return [Patch(FlexAttentionHOP, "__call__", _call)]
