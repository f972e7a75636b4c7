"""The fast path of MultiheadAttention and TransformerEncoderLayer.

Here it is run as the operators of which it consists.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/transformers/transformer.cpp
https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/transformers/cuda/attention.cu
(native_multi_head_attention_cuda)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from nbmem.virtual.operators.attention.choice import choose

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten
_ATTENTION_ARGUMENTS = (
    *("qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "mask", "mask_type"),
)


def layer(executor: Executor, call: OperatorCall) -> Any:
    """Run a transformer encoder layer by its operators.

    They are attention and two products with an activation between them. Both are added in
    place.
    """
    source, width = call.args[0], call.argument("embed_dim")
    first, eps = call.argument("norm_first"), call.argument("eps")
    norms = [
        (call.argument(f"norm_weight_{n}"), call.argument(f"norm_bias_{n}"), eps) for n in (1, 2)
    ]
    heads, *weights, mask, kind = map(call.argument, ("num_heads", *_ATTENTION_ARGUMENTS))
    with executor:
        x = F.layer_norm(source, (width,), *norms[0]) if first else source
        x = _attention((x, x, x), heads, weights, mask, kind, need_weights=False)[0]
        x.add_(source)
        if not first:
            x = F.layer_norm(x, (width,), *norms[0])
        before = x
        if first:
            x = F.layer_norm(x, (width,), *norms[1])
        flat = x.view(-1, x.size(-1))
        x = aten._addmm_activation(
            call.argument("ffn_bias_1"), flat, call.argument("ffn_weight_1").t(),
            use_gelu=call.argument("use_gelu"),
        )  # fmt: skip
        del flat
        x = torch.addmm(call.argument("ffn_bias_2"), x, call.argument("ffn_weight_2").t())
        x = x.view(source.size())
        x.add_(before)
        return x if first else F.layer_norm(x, (width,), *norms[1])


def attention(executor: Executor, call: OperatorCall) -> Any:
    """Run the layer's attention, and return its weights if wanted."""
    heads, *weights, mask, kind = map(call.argument, ("num_head", *_ATTENTION_ARGUMENTS))
    wanted = bool(call.argument("need_weights"))
    with executor:
        result, rows = _attention(call.args[:3], heads, weights, mask, kind, need_weights=wanted)
        if rows is not None and call.argument("average_attn_weights"):
            rows = rows.sum(1)
            rows /= heads
        return result, rows


def _attention(  # noqa: PLR0913 - the operator's
    sources: Any,
    heads: int,
    weights: Any,
    mask: torch.Tensor | None,
    kind: int | None,
    *,
    need_weights: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute attention by a fused kernel, or else in existing buffers.

    Without a fused kernel the softmax is in place, and the result reuses the queries' memory.
    """
    query, key, value = sources
    in_weight, in_bias, out_weight, out_bias = weights
    is_self_attention = query is key and key is value
    if is_self_attention and not need_weights and mask is None:
        part = _by_head(query, heads)
        if choose(part, part, part, None, dropout=0.0, is_causal=False, gqa=False) != "math":
            projected = F.linear(query, in_weight, in_bias)
            parts = [_by_head(part, heads) for part in projected.chunk(3, -1)]
            joined = F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(query.size())
            result = F.linear(joined, out_weight, out_bias)
            del joined, parts, projected
            return result, None
    parts = list(aten._transform_bias_rescale_qkv(_projected(sources, in_weight), in_bias, heads))
    flat = [part.flatten(0, 1) for part in parts]
    scores = torch.bmm(flat[0], flat[1].transpose(1, 2)).view(*parts[0].shape[:3], key.size(1))
    if mask is None:
        aten._softmax.out(scores, -1, False, out=scores)
    else:
        scores = aten._masked_softmax(scores, mask.to(torch.bool), scores.dim() - 1, kind)
    # torch writes the result into the queries' memory.
    aten.bmm.out(scores.flatten(0, 1), flat[2], out=flat[0])
    returned = scores if need_weights else None
    del scores
    joined = parts[0].transpose(1, 2).reshape(query.size())
    result = F.linear(joined.flatten(0, 1), out_weight, out_bias).view(query.size())
    del joined, flat, parts
    return result, returned


def _projected(sources: Any, weight: torch.Tensor) -> torch.Tensor:
    """Project queries, keys and values (qkv_projection).

    Arguments that are the same tensor share one product.
    """
    query, key, value = sources
    width = weight.size(1)
    if query is key and key is value:
        return torch.matmul(query, weight.t())
    cuts = [width, 2 * width] if key is value else [width] * 3
    parts = zip((query, key, value), weight.split(cuts), strict=False)
    return torch.cat([torch.matmul(source, part.t()) for source, part in parts], 2)


def _by_head(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    rows, width = tensor.size(0), tensor.size(-1)
    return tensor.view(rows, -1, heads, width // heads).transpose(1, 2)


def queries_keys_values(executor: Executor, call: OperatorCall) -> Any:
    """Create queries, keys and values as three parts of one buffer."""
    source = call.args[0]
    rows, steps, width = source.size()
    heads = int(call.args[2])
    size = (3 * rows, heads, steps, width // 3 // heads)
    with executor:
        return torch.empty(size, dtype=source.dtype, device=source.device).split(rows)


def left_aligned(executor: Executor, call: OperatorCall) -> bool:
    """Return False: TransformerEncoder keeps the padding.

    True would be a padding mask that allows it to cut the padding off.
    """
    return False
