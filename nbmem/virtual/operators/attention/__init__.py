"""Attention: CUDA's choice of a kernel, what it saves, and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import Operator
from nbmem.virtual.operators.attention import encoder, flash, fused_kernels
from nbmem.virtual.operators.attention.choice import scaled_dot_product_attention
from nbmem.virtual.tensors.shapes import Results, infer, several, spec_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall


def shape_cudnn(call: OperatorCall) -> Results:
    """Return cuDNN's results, without statistics if no gradient is wanted.

    aten/src/ATen/native/cudnn/MHA.cpp: run_cudnn_SDP_fprop (return_softmaxstats)
    """
    results = infer(call)
    if call.argument("compute_log_sumexp"):
        return results
    result, statistics, *others = results.shape
    none = spec_of((0,), statistics.dtype, statistics.number)
    fresh = tuple(none if spec.number == none.number else spec for spec in results.fresh)
    return Results((result, none, *others), fresh)


def shape_efficient_backward(call: OperatorCall) -> Results:
    """Return gradients like the arguments, and a bias's if it learns."""
    _, query, key, value, bias = call.args[:5]
    learned = bias is not None and call.argument("bias_requires_grad")
    sizes = [tensor.size() for tensor in (query, key, value)]
    sizes.append(bias.size() if learned else torch.Size((0,)))
    return several(*((size, query.dtype) for size in sizes))


AMPERE = (8, 0)


def refuse_flash(call: OperatorCall) -> None:
    """Refuse FlashAttention on a card that does not have it.

    A program may call it by name.

    Raises:
        RuntimeError: The card is older than Ampere.
    """
    if call.gpu.card.capability < AMPERE:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


def refuse_cpus(call: OperatorCall) -> None:
    """Refuse an operator that only the CPU has a kernel of.

    Raises:
        NotImplementedError: Always.
    """
    name = call.func._schema.name
    raise NotImplementedError(f"Could not run '{name}' with arguments from the 'CUDA' backend.")


OPERATORS = (
    Operator(("_scaled_dot_product_flash_attention_for_cpu",), refuse=refuse_cpus),
    Operator(("scaled_dot_product_attention",), composite=scaled_dot_product_attention),
    Operator(
        ("_scaled_dot_product_efficient_attention",),
        memory=fused_kernels.efficient,
        source="aten/src/ATen/native/transformers/cuda/attention.cu: _efficient_attention_forward",
        shown_by="gpt2_b4s512_adamw, forward",
    ),
    Operator(
        ("_scaled_dot_product_efficient_attention_backward",),
        memory=fused_kernels.efficient_backward,
        source="aten/src/ATen/native/transformers/cuda/attention_backward.cu: "
        "_efficient_attention_backward",
        shown_by="gpt2_b4s512_adamw, backward",
    ),
    Operator(
        ("_efficient_attention_forward",),
        memory=fused_kernels.efficient,
        source="aten/src/ATen/native/transformers/cuda/attention.cu: _efficient_attention_forward",
    ),
    Operator(
        ("_efficient_attention_backward",),
        shape=shape_efficient_backward,
        memory=fused_kernels.efficient_backward_by_rows,
        source="aten/src/ATen/native/transformers/cuda/attention_backward.cu: "
        "_efficient_attention_backward",
    ),
    Operator(
        ("_flash_attention_forward",),
        refuse=refuse_flash,
        memory=flash.forward,
        source="aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_fwd",
    ),
    Operator(
        ("_flash_attention_backward",),
        memory=flash.backward,
        source="aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_bwd",
    ),
    Operator(
        ("_scaled_dot_product_flash_attention",),
        refuse=refuse_flash,
        memory=flash.forward_by_heads,
        source="aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_fwd",
    ),
    Operator(
        ("_scaled_dot_product_flash_attention_backward",),
        memory=flash.backward_by_heads,
        source="aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_bwd",
    ),
    Operator(
        ("_scaled_dot_product_cudnn_attention",),
        shape=shape_cudnn,
        memory=fused_kernels.cudnn,
        source="aten/src/ATen/native/cudnn/MHA.cpp: run_cudnn_SDP_fprop",
        shown_by="llama160m_b4s1024_adamw_ampbf16, forward",
    ),
    Operator(
        ("_scaled_dot_product_cudnn_attention_backward",),
        memory=fused_kernels.cudnn_backward,
        source="aten/src/ATen/native/cudnn/MHA.cpp: run_cudnn_SDP_bprop; cudnn-frontend v1.18, "
        "node/scaled_dot_product_flash_attention.h: get_fe_workspace_size_node",
        shown_by="llama160m_b4s1024_adamw_ampbf16, backward",
    ),
    Operator(
        ("_safe_softmax",),
        memory=fused_kernels.safe_softmax,
        source="aten/src/ATen/native/transformers/attention.cpp: _safe_softmax",
        shown_by="t5_small_b8s256_adafactor, forward",
    ),
    Operator(("_transformer_encoder_layer_fwd",), run=encoder.layer),
    Operator(("_native_multi_head_attention",), run=encoder.attention),
    Operator(("_transform_bias_rescale_qkv",), run=encoder.queries_keys_values),
    Operator(("_nested_tensor_from_mask_left_aligned",), run=encoder.left_aligned),
)
