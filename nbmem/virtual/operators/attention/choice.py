"""CUDA's choice of an attention kernel, and the call to it.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from nbmem.allocator.torch_rules import Rules, rules_for
from nbmem.virtual import current_machine
from nbmem.virtual.arch import Arch, arch_of
from nbmem.virtual.operator_model.operator import HALVES
from nbmem.virtual.operator_model.value_checks import in_cpp
from nbmem.virtual.operators.attention.math import additive_mask, math_attention

aten = torch.ops.aten


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
    """Run the attention kernel that CUDA chooses.

    A mask of bools is made one that is added first.
    """
    check(query, key, value)
    if query.dim() == key.dim() == value.dim() == 3 and _rules(query).attention_of_three:
        q, k, v = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(0)
        return scaled_dot_product_attention(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        ).squeeze(0)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    kernel = choose(
        query, key, value, attn_mask, dropout=dropout_p, is_causal=is_causal, gqa=enable_gqa
    )
    mask = additive_mask(attn_mask, query.dtype)
    if kernel == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if kernel == "cudnn":
        return _first(
            aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, needs_grad, dropout_p, is_causal, False, scale=scale
            )
        )
    if kernel == "efficient":
        aligned = _aligned(mask, query, key)  # It outlives the results that are not returned.
        return _first(
            aten._scaled_dot_product_efficient_attention(
                query, key, value, aligned, needs_grad, dropout_p, is_causal, scale=scale
            )
        )
    return math_attention(
        query, key, value, mask, dropout_p, is_causal=is_causal, scale=scale, gqa=enable_gqa
    )


def check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Check that query, key and value have one type.

    Raises:
        RuntimeError: The types differ.
    """
    if not query.dtype is key.dtype is value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{in_cpp(query)} key.dtype: {in_cpp(key)} and value.dtype: {in_cpp(value)} instead."
        )


def choose(  # noqa: PLR0913 - what the choice depends on
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    dropout: float,
    is_causal: bool,
    gqa: bool,
) -> str:
    """Return the first kernel in torch's order whose conditions hold.

    Without such a kernel it is "math".
    """
    tensors = (query, key, value)
    if any(t.dim() != 4 or not t.numel() for t in tensors):
        return "math"
    if not query.size(0) == key.size(0) == value.size(0):
        return "math"
    if mask is not None and mask.stride(-1) != 1:
        return "math"
    asked = _AttentionArguments(query, key, value, mask, dropout, is_causal, gqa)
    return next((name for name, takes in _IN_ORDER if takes(asked)), "math")


def _rules(tensor: torch.Tensor) -> Rules:
    machine = current_machine.machine()
    return rules_for(torch.__version__) if machine is None else machine.of(tensor).rules


class _AttentionArguments(NamedTuple):
    """The arguments that the kernels' conditions read."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    gqa: bool

    @property
    def arch(self) -> Arch:
        machine = current_machine.machine()
        return arch_of((9, 0)) if machine is None else machine.of(self.query).card.arch

    @property
    def rules(self) -> Rules:
        return _rules(self.query)

    @property
    def dropout_fits_cudnn(self) -> bool:
        """True if cuDNN takes this dropout (check_cudnn_dropout).

        Some releases require one that cuDNN can draw exactly: a multiple of 1/16.
        """
        return not self.rules.sixteenths_of_dropout or not (self.dropout * 16) % 1

    @property
    def half(self) -> bool:
        """True for a half type on a card whose tensor cores take both."""
        return self.query.dtype in HALVES and self.arch.bfloat16

    @property
    def widths(self) -> tuple[int, int]:
        """Elements of a head of queries, and of a head of values."""
        return self.query.size(-1), self.value.size(-1)

    @property
    def same_heads(self) -> bool:
        return self.query.size(1) == self.key.size(1) == self.value.size(1)

    @property
    def groups(self) -> bool:
        """True if each query has a head of keys and values."""
        heads = self.query.size(1)
        divides = heads % self.key.size(1) == 0 and heads % self.value.size(1) == 0
        one_for_all = self.key.size(1) == self.value.size(1) == 1
        grouped = self.gqa or (one_for_all and self.rules.efficient_groups)
        return self.same_heads or (grouped and divides)

    @property
    def whole_rows(self) -> bool:
        return all(t.stride(-1) == 1 for t in (self.query, self.key, self.value))


def _cudnn_takes(asked: _AttentionArguments) -> bool:
    """Return whether cuDNN's kernel takes the call.

    check_prefer_cudnn_attention: cuDNN is the first choice on Hopper and on data-centre
    Blackwell.
    """
    wide, wide_value = asked.widths
    mask = asked.mask
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and asked.half
        and asked.groups
        and (asked.whole_rows or wide == 1)
        and not torch.are_deterministic_algorithms_enabled()
        and (mask is None or _fits(mask, asked.query, asked.key))
        and max(wide, wide_value) <= asked.arch.cudnn_attention
        and wide % 8 == wide_value % 8 == 0
        and asked.key.size(2) > 1
        and (asked.query.size(2) > 1 or not asked.dropout)
        and asked.dropout_fits_cudnn
    )


def _flash_takes(asked: _AttentionArguments) -> bool:
    wide, wide_value = asked.widths
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and asked.half
        and asked.mask is None
        and asked.groups
        and asked.key.size(1) == asked.value.size(1)
        and (asked.whole_rows or wide == 1)
        and wide == asked.key.size(-1) == wide_value <= 256
        and not (asked.is_causal and asked.query.size(2) != asked.key.size(2))
    )


def _efficient_takes(asked: _AttentionArguments) -> bool:
    wide, wide_value = asked.widths
    dtype = asked.query.dtype
    unit = (8 if dtype in HALVES else 4) if asked.arch.bfloat16 else 1
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and (asked.half or dtype in (torch.float32, torch.float16))
        and (asked.groups if asked.rules.efficient_groups else asked.same_heads)
        and asked.whole_rows
        and wide == asked.key.size(-1)
        and wide % unit == wide_value % unit == 0
    )


_IN_ORDER = (
    ("cudnn", _cudnn_takes),
    ("flash", _flash_takes),
    ("efficient", _efficient_takes),
)


def _fits(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> bool:
    """Return whether cuDNN takes the mask (check_attn_mask_shape).

    The mask must be for every query and key, without a gradient.
    """
    whole = (query.size(0), query.size(1), query.size(2), key.size(2))
    return (
        not mask.requires_grad
        and mask.dim() in (2, 4)
        and all(s in (1, w) for s, w in zip(mask.size(), whole[-mask.dim() :], strict=True))
    )


def _flash(  # noqa: PLR0913 - the kernel's
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,  # noqa: FBT001
    scale: float | None,
) -> torch.Tensor:
    """Run FlashAttention, padding the heads to a multiple of 8.

    The padding is zeros, which are cut off afterwards.
    """
    size = query.size(-1)
    scale = 1 / math.sqrt(size) if scale is None else scale
    pad = -size % 8
    if pad:
        query, key, value = (torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value))
    result = _first(
        aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
    )
    return result[..., :size] if pad else result


def _first(results: Any) -> torch.Tensor:
    """Return the first result, and free the others as a C++ tuple does."""
    result, *others = results
    del results
    others.reverse()
    while others:
        others.pop()
    return result


def _aligned(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> Any:
    """Return the mask with aligned rows for every head (preprocess_mask).

    Rows begin at multiples of 8 elements.
    """
    if mask is None:
        return None
    columns = mask.size(-1)
    if mask.stride(-1) != 1 or any(step % 8 for step in mask.stride()[:-1]):
        mask = torch.nn.functional.pad(mask, (0, 8 - columns % 8))[..., :columns]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
