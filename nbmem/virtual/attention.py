"""Which attention kernel CUDA takes, and the call to it.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
"""

from __future__ import annotations

import math
from typing import Any

import torch

from nbmem.virtual import current

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


def scaled_dot_product_attention(  # noqa: PLR0913 - the schema's
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Half types without a mask: cuDNN or flash; else memory-efficient, else plain products."""
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    kernel = choose(query, key, value, attn_mask, is_causal=is_causal, gqa=enable_gqa)
    if kernel == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if kernel == "cudnn":
        result = aten._scaled_dot_product_cudnn_attention(
            query, key, value, attn_mask, needs_grad, dropout_p, is_causal, False, scale=scale
        )
        return result[0]
    if kernel == "efficient":
        bias = _bias(attn_mask, query, key)
        result = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
        )
        return result[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def choose(  # noqa: PLR0913 - what the choice depends on
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
    gqa: bool,
) -> str:
    """The first kernel in torch's order whose conditions hold."""
    capability = _capability(query)
    four = query.dim() == key.dim() == value.dim() == 4
    same_heads = four and query.size(1) == key.size(1) == value.size(1)
    if four and all(t.numel() for t in (query, key, value)):
        groups = same_heads or (gqa and query.size(1) % key.size(1) == 0)
        if (
            # check_prefer_cudnn_attention: first on Hopper and on data-centre Blackwell.
            capability in ((9, 0), (10, 0))
            and torch.backends.cuda.cudnn_sdp_enabled()
            and mask is None
            and query.dtype in _HALVES
            and groups
            and query.size(-1) % 8 == 0
            and max(query.size(-1), value.size(-1)) <= 128
            and query.size(2) > 1
        ):
            return "cudnn"
        if (
            torch.backends.cuda.flash_sdp_enabled()
            and capability >= (8, 0)
            and mask is None
            and query.dtype in _HALVES
            and query.size(-1) == key.size(-1) == value.size(-1)
            and query.size(-1) <= 256
            and groups
            and not (is_causal and query.size(2) != key.size(2) and capability < (8, 0))
        ):
            return "flash"
        if (
            torch.backends.cuda.mem_efficient_sdp_enabled()
            and same_heads
            and query.dtype in (torch.float32, *_HALVES)
            and (query.dtype is not torch.bfloat16 or capability >= (8, 0))
            and not (mask is not None and is_causal)
            and not (mask is not None and mask.requires_grad)
            and all(t.stride(-1) == 1 for t in (query, key, value))
        ):
            return "efficient"
    return "math"


def _flash(  # noqa: PLR0913 - the kernel's
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,  # noqa: FBT001
    scale: float | None,
) -> torch.Tensor:
    """Head sizes that 8 does not divide are padded with zeros first and cut off afterwards."""
    size = query.size(-1)
    scale = 1 / math.sqrt(size) if scale is None else scale
    pad = -size % 8
    if pad:
        query, key, value = (torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value))
    result = aten._scaled_dot_product_flash_attention(
        query,
        key,
        value,
        dropout_p,
        is_causal,
        False,
        scale=scale,
    )[0]
    return result[..., :size] if pad else result


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> Any:
    """A mask as the efficient kernel wants it: added, and padded to 16 bytes a row."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        # convert_boolean_attn_mask: zeros where attended, -inf elsewhere.
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    # preprocess_mask: rows of the mask must be aligned to 16 elements.
    columns = mask.size(-1)
    if columns % 16:
        mask = torch.nn.functional.pad(mask, (0, -columns % 16))[..., :columns]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _capability(query: torch.Tensor) -> tuple[int, int]:
    machine = current.machine()
    return machine.of(query).card.capability if machine is not None else (9, 0)
