"""flash-attn 2: the host code of `flash_attn_2_cuda`.

csrc/flash_attn/flash_api.cpp of https://github.com/Dao-AILab/flash-attention/tree/0251105a; the
arguments are in the module's order, those that no size depends on are `rest`.
"""

# ruff: noqa: FBT001, PLR0913 - arguments and names as the module has them
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nbmem.core.units import round_up
from nbmem.virtual.kernel_rules import KernelRules
from nbmem.virtual.split_kv import num_splits

PARTS_APART = 128
"""Rows of padding after each sequence of a varlen batch, in backward's buffers."""


def forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, slopes: Tensor | None, dropout: float,
    scale: float, causal: bool, left: int, right: int, softcap: float, return_softmax: bool,
    *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the host code of `mha_fwd`."""
    _check(q)
    batch, queries, heads, size = q.size()
    keys, key_heads = k.size(1), k.size(2)
    swapped = (
        _is_one_query(queries, heads, key_heads, slopes)
        and not _has_window(left, right, keys)
        and not dropout
    )
    if swapped:
        q = q.reshape(batch, key_heads, heads // key_heads, size).transpose(1, 2)
        queries, heads = heads // key_heads, key_heads
        out = out if out is None else out.reshape(batch, key_heads, queries, size).transpose(1, 2)
    if out is None:
        out = torch.empty_like(q)
    lse = _floats(q, batch, heads, queries)
    softmax = _softmax(q, batch, heads, queries, keys, wanted=return_softmax)
    parts = () if dropout else _parts(q, batch, heads, queries, keys, size, 0)
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    if swapped:
        whole = (batch, 1, key_heads * queries, size)
        out, q = out.transpose(1, 2).reshape(whole), q.transpose(1, 2).reshape(whole)
        lse = lse.reshape(batch, key_heads * queries, 1)
    del parts, v
    return out, lse, softmax, state


def varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, starts: Tensor, key_starts: Tensor,
    used: Tensor | None, leftpad: Tensor | None, table: Tensor | None, slopes: Tensor | None,
    queries: int, keys: int, dropout: float, scale: float, zero: bool, causal: bool, left: int,
    right: int, softcap: float, return_softmax: bool, generator: Any = None, splits: int = 0,
    *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the host code of `mha_varlen_fwd`."""
    _check(q)
    batch = starts.numel() - 1
    heads, size = q.size(1), q.size(2)
    key_heads = k.size(1 if table is None else 2)
    swapped = (
        _is_one_query(queries, heads, key_heads, slopes) and left < 0 and right < 0 and not dropout
    )
    if swapped:
        groups = heads // key_heads
        q = q.reshape(batch, key_heads, groups, size).transpose(1, 2)
        q = q.reshape(batch * groups, key_heads, size)
        queries, heads = groups, key_heads
    if out is None:
        out = torch.empty_like(q)
    lse = _floats(q, heads, q.size(0))
    softmax = _softmax(q, batch, heads, queries, keys, wanted=return_softmax)
    parts = _parts(q, batch, heads, queries, keys, size, splits) if swapped else ()
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    if swapped:
        before, after = (batch, queries, key_heads, size), (batch, key_heads * queries, size)
        out = out.reshape(before).transpose(1, 2).reshape(after)
        q = q.reshape(before).transpose(1, 2).reshape(after)
        lse = lse.reshape(heads * queries, batch)
    del parts, v
    return out, lse, softmax, state


def with_cache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None,
    used: Tensor | None, cos: Tensor | None, sin: Tensor | None, index: Tensor | None,
    leftpad: Tensor | None, table: Tensor | None, slopes: Tensor | None, out: Tensor | None,
    scale: float, causal: bool, left: int, right: int, softcap: float, interleaved: bool,
    splits: int, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the host code of `mha_fwd_kvcache`."""
    _check(q)
    batch, queries, heads, size = q.size()
    keys = k_cache.size(1) * (1 if table is None else table.size(1))
    key_heads = k_cache.size(2)
    swapped = (
        _is_one_query(queries, heads, key_heads, slopes) and left < 0 and right < 0 and not size % 8
    )
    if swapped:
        q = q.reshape(batch, key_heads, heads // key_heads, size).transpose(1, 2)
        queries, heads = heads // key_heads, key_heads
    head_padding = (0, -size % 8)
    q, k_all, v_all = (pad(t, head_padding) if size % 8 else t for t in (q, k_cache, v_cache))
    result = torch.empty_like(q) if out is None or size % 8 else out
    lse = _floats(q, batch, heads, queries)
    added = [pad(t, head_padding) for t in (k, v) if t is not None and size % 8]
    parts = _parts(q, batch, heads, queries, keys, round_up(size, 8), splits)
    if size % 8:
        result = result[..., :size]
        if out is not None:
            out.copy_(result)
        if k is not None:
            k_cache.copy_(k_all[..., :size])
            v_cache.copy_(v_all[..., :size])
    if swapped:
        result = result.transpose(1, 2).reshape(batch, 1, key_heads * queries, size)
        lse = lse.reshape(batch, key_heads * queries, 1)
    del parts, added
    return result, lse


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, slopes: Tensor | None, dropout: float, scale: float,
    causal: bool, left: int, right: int, softcap: float, deterministic: bool, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the host code of `mha_bwd`."""
    _check(q)
    batch, queries, heads, size = q.size()
    dq, dk, dv = _gradients((q, dq), (k, dk), (v, dv))
    rows = (batch, round_up(queries, 128))
    sums = _floats(q, batch, heads, rows[1])
    _allocate_gradient_buffers(q, batch, rows, heads, size, dk, dv, deterministic=deterministic)
    return dq, dk, dv, sums


def varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, starts: Tensor, key_starts: Tensor,
    slopes: Tensor | None, queries: int, keys: int, dropout: float, scale: float, zero: bool,
    causal: bool, left: int, right: int, softcap: float, deterministic: bool, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the host code of `mha_varlen_bwd`."""
    _check(q)
    batch = starts.numel() - 1
    heads, size = q.size(1), q.size(2)
    dq, dk, dv = _gradients((q, dq), (k, dk), (v, dv))
    rows = q.size(0) + PARTS_APART * batch
    sums = _floats(q, heads, rows)
    _allocate_gradient_buffers(q, batch, (rows,), heads, size, dk, dv, deterministic=deterministic)
    return dq, dk, dv, sums


def _check(q: Tensor) -> None:
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if q.size(-1) > 256:
        raise RuntimeError("FlashAttention only supports head dimension at most 256")


def _is_one_query(queries: int, heads: int, key_heads: int, slopes: Tensor | None) -> bool:
    return queries == 1 and heads > key_heads and slopes is None


def _has_window(left: int, right: int, keys: int) -> bool:
    return 0 <= left < keys or 0 <= right < keys


def _rounded(size: int) -> int:
    return round_up(size, 32 if size <= 128 else 64)


def _floats(like: Tensor, *size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float32, device=like.device)


def _softmax(q: Tensor, batch: int, heads: int, queries: int, keys: int, *, wanted: bool) -> Tensor:
    return q.new_empty(
        (batch, heads, round_up(queries, 128), round_up(keys, 128)) if wanted else (0,)
    )


def _parts(
    q: Tensor, batch: int, heads: int, queries: int, keys: int, size: int, splits: int
) -> tuple[Tensor, ...]:
    """Allocate each split's sums and results as `set_params_splitkv` does.

    They are live until the end of the call. Empty if there is one split.
    """
    block = 256 if size <= 64 else 128 if size <= 128 else 64
    if splits < 1:
        processors = 2 * torch.cuda.get_device_properties(q.device).multi_processor_count
        splits = num_splits(batch * heads * -(-queries // 64), processors, -(-keys // block), 128)
    if splits <= 1:
        return ()
    parts = (splits, batch, heads, queries)
    return _floats(q, *parts), _floats(q, *parts, _rounded(size))


def _gradients(*pairs: tuple[Tensor, Tensor | None]) -> list[Tensor]:
    return [torch.empty_like(like) if made is None else made for like, made in pairs]


def _allocate_gradient_buffers(
    q: Tensor, batch: int, rows: tuple[int, ...], heads: int, size: int, dk: Tensor, dv: Tensor,
    *, deterministic: bool,
) -> None:  # fmt: skip
    """Allocate and free the buffers of `dq`, and of shared keys' gradients.

    Buffers for keys are needed where several heads share them.
    """
    if deterministic:
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count
        rows = (-(-processors // (batch * heads)), *rows)
    sums = _floats(q, *rows, heads, _rounded(size))
    groups = heads // dk.size(-2)
    if groups > 1:
        each = [grad.new_empty(*grad.size()[:-2], heads, size) for grad in (dk, dv)]
        for grad, whole in zip((dk, dv), each, strict=True):
            apart = whole.reshape(*grad.size()[:-1], groups, size)
            torch.sum(apart, [-2], out=grad)
    del sums


RULES = KernelRules(
    modules={
        "flash_attn_2_cuda": {
            "fwd": forward,
            "varlen_fwd": varlen_forward,
            "bwd": backward,
            "varlen_bwd": varlen_backward,
            "fwd_kvcache": with_cache,
        }
    }
)
