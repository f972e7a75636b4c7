"""Attention by plain matrix products, without a fused kernel.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/transformers/attention.cpp
"""

from __future__ import annotations

import math

import torch

from nbmem.virtual.operator_model.operator import HALVES

aten = torch.ops.aten


def math_attention(  # noqa: PLR0913 - as above
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    *,
    is_causal: bool,
    scale: float | None,
    gqa: bool,
) -> torch.Tensor:
    """Compute attention by plain products.

    The mask is added in place. C++ would not do so while a dispatch mode is active.

    aten/src/ATen/native/transformers/attention.cpp: _scaled_dot_product_attention_math
    """
    dtype = query.dtype
    if dtype in HALVES and not torch._C._get_math_sdp_allow_fp16_bf16_reduction():
        query, key, value = query.float(), key.float(), value.float()
    factor = math.sqrt(
        abs(scale) if scale is not None else 1 / math.sqrt(query.size(-1) or math.inf)
    )
    scaled = query * (-factor if scale is not None and scale < 0 else factor)
    if is_causal:
        shape = (query.size(-2), key.size(-2))
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        mask = additive_mask(mask, query.dtype)
    every_key, every_value = key, value
    if gqa and not query.size(-3) == key.size(-3) == value.size(-3):
        heads = query.size(-3)
        every_key = key.repeat_interleave(heads // key.size(-3), -3)
        every_value = value.repeat_interleave(heads // value.size(-3), -3)
    scores = torch.matmul(scaled, every_key.transpose(-2, -1) * factor)
    if mask is not None:
        scores.add_(mask)
    scores = aten._safe_softmax(scores, -1)
    scores = torch.dropout(scores, dropout_p, True) if dropout_p else scores
    weights = scores.to(dtype)  # Returned beside the result, which is made last.
    result = torch.matmul(scores, every_value).to(dtype)
    # In the order in which C++ frees its variables: the last first, then the second result.
    del scores, every_key, every_value, scaled, mask, value, key, query, weights
    return result


def additive_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a mask to be added to scores (convert_boolean_attn_mask).

    A bool becomes 0 if it is attended, and -inf otherwise. Other masks are returned as they
    are.
    """
    if mask is None or mask.dtype is not torch.bool:
        return mask
    nothing = aten.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device)
    return torch.where(mask, 0.0, nothing)
