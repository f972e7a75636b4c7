"""Operators whose results can be negative.

The table has the signs that the made-up values of unknown results get. Operators that are
not listed return positive numbers: exponentials, probabilities, deviations, losses.

A name stands for all overloads, and with "_" for the in-place operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.tensors.stand_ins.sign_and_seed import SignAndSeed
from nbmem.virtual.tensors.stand_ins.value_signs import (
    as_arguments,
    as_factors,
    copied,
    drawn_positive,
    drawn_signed,
    positive,
    signed,
)

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.stand_ins.value_signs import SignRule
    from nbmem.virtual.tensors.values import Values


def uniform(values: Values, call: OperatorCall) -> SignAndSeed:
    """Return whether the range of `uniform_` begins below 0, as a sign."""
    del values
    return SignAndSeed(0, signed=call.argument("from", 0.0) < 0)


_SIGNED = (
    *("_addmm_activation", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "dot", "linear"),
    *("mm", "mv", "vdot", "_trilinear", "_int_mm", "_scaled_mm"),
    *("_convolution", "convolution", "convolution_overrideable", "cudnn_convolution"),
    *("cudnn_convolution_transpose", "cudnn_convolution_add_relu", "slow_conv3d"),
    *(
        "_batch_norm_with_update",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
    ),
    *("cudnn_batch_norm", "native_batch_norm", "native_group_norm", "native_layer_norm"),
    *("_fft_c2c", "_fft_c2r", "_fft_r2c", "_log_softmax", "log", "log10", "log1p", "log2"),
    *("erfinv", "neg", "normal", "sub"),
)
_AS_ARGUMENTS = (
    *("add", "addcdiv", "addcmul", "div", "lerp", "rsub", "where", "maximum", "minimum"),
    *("celu", "elu", "gelu", "hardswish", "leaky_relu", "mish", "prelu", "selu", "silu"),
    *("_fused_dropout", "native_dropout", "masked_fill", "nan_to_num", "ceil", "floor", "round"),
    *("_embedding_bag", "embedding", "gather", "index", "index_select", "masked_select", "take"),
    *("cat", "constant_pad_nd", "flip", "reflection_pad1d", "reflection_pad2d", "repeat", "roll"),
    *("replication_pad2d", "stack", "tril", "triu", "im2col", "col2im", "pixel_shuffle"),
    *("index_add", "index_copy", "index_put", "masked_scatter", "scatter", "scatter_add"),
    *("amax", "amin", "cumsum", "kthvalue", "max", "mean", "median", "min", "sort", "sum", "topk"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "avg_pool2d", "avg_pool3d"),
    *("adaptive_max_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("grid_sampler_2d", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_trilinear3d"),
    *("_cudnn_rnn", "_fused_rms_norm"),
    *("_efficient_attention_forward", "_flash_attention_forward"),
    *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_fused_attention_overrideable"),
)
_POSITIVE_IN_PLACE = (
    *("abs", "acos", "acosh", "bernoulli", "clamp", "clamp_min", "cos", "cosh", "erfc", "exp"),
    *("exp2", "exponential", "fill", "geometric", "hardsigmoid", "hardtanh", "log_normal", "pow"),
    *("reciprocal", "relu", "rsqrt", "sigmoid", "sin", "sqrt", "square", "tanh", "threshold"),
    *("zero", "eq", "ge", "gt", "le", "lt", "ne", "logical_and", "logical_not", "logical_or"),
)
SIGN_RULES: dict[str, SignRule] = {
    **{name: as_arguments for plain in _AS_ARGUMENTS for name in (plain, f"{plain}_")},
    **{name: signed for plain in _SIGNED for name in (plain, f"{plain}_")},
    **{f"{name}_": positive for name in _POSITIVE_IN_PLACE},
    **dict.fromkeys(("_to_copy", "clone", "copy_"), copied),
    **dict.fromkeys(("mul", "mul_"), as_factors),
    **dict.fromkeys(("bernoulli", "rand", "rand_like"), drawn_positive),
    **dict.fromkeys(("normal", "randn", "randn_like"), drawn_signed),
    "uniform_": uniform,
}
