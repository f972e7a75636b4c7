"""Types of one byte and less, and the kernels that CUDA lacks for them.

CUDA has copies and comparisons for equality. Torch 2.13's CUDA build was tested operator by
operator, without a card (tests/oracle). Scaled products and casts, for which these types
exist, are in scaled.py and copies.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

_NAMES = {
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "float8_e4m3fnuz": "Float8_e4m3fnuz",
    "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "float8_e8m0fnu": "Float8_e8m0fnu",
}
TINY = {getattr(torch, name): said for name, said in _NAMES.items() if hasattr(torch, name)}
"""The types by the names that ATen's messages give them."""
_KERNELS = {
    "GeluCUDAKernelImpl": "gelu",
    "LayerNormKernelImpl": "_fused_rms_norm native_layer_norm",
    "abs_cuda": "abs",
    "addcdiv_cuda": "addcdiv",
    "addcmul_cuda": "addcmul",
    "addmm_cuda": "addmm mm",
    "addmv_impl_cuda": "mv",
    "and_cuda": "all",
    "arange_cuda": "arange",
    "argmax_cuda": "argmax",
    "argmin_cuda": "argmin",
    "atan2_cuda": "atan2",
    "avg_pool2d_out_cuda_frame": "avg_pool2d",
    "baddbmm_cuda": "baddbmm bmm",
    "bernoulli_tensor_cuda_self_": "bernoulli",
    "bitwise_not_cuda": "bitwise_not",
    "cdist_cuda": "_cdist_forward",
    "ceil_cuda": "ceil",
    "check_uniform_bounds": "rand uniform",
    "clamp_scalar_cuda": "clamp clamp_min relu",
    "compare_cuda": "ge gt le lt",
    "copysign_cuda": "copysign",
    "cos_cuda": "cos",
    "cuda_scatter_gather_base_kernel_func": "scatter_add",
    "cummax_cuda": "cummax",
    "div_true_cuda": "div",
    "dot": "dot",
    "embedding_bag_cuda": "_embedding_bag_forward_only",
    "erf_cuda": "erf",
    "exp_cuda": "exp",
    "floor_cuda": "floor",
    "fmod_cuda": "fmod",
    "foreach_binary_op_list_cuda": "_foreach_add",
    "foreach_binary_op_scalar_cuda": "_foreach_mul",
    "foreach_tensor_norm_cuda": "_foreach_norm",
    "fused_dropout": "native_dropout",
    "histc": "histc",
    "index_add": "index_add",
    "index_copy_cuda": "index_copy",
    "isinf": "isinf",
    "lerp_cuda": "lerp",
    "linspace_cuda": "linspace",
    "log_cuda": "log",
    "logical_and_cuda": "logical_and",
    "logical_not_cuda": "logical_not",
    "masked_fill_": "masked_fill",
    "max_all_cuda": "max",
    "max_cuda": "max.dim",
    "max_elementwise_cuda": "maximum",
    "max_values_cuda": "amax",
    "mean_cuda": "mean",
    "min_all_cuda": "min",
    "min_cuda": "min.dim",
    "min_elementwise_cuda": "minimum",
    "min_values_cuda": "amin",
    "mse_cuda": "mse_loss",
    "mul_cuda": "mul",
    "nan_to_num_cuda": "nan_to_num",
    "neg_cuda": "neg",
    "nonzero_cuda": "nonzero",
    "norm_cuda": "linalg_vector_norm",
    "normal_kernel_cuda": "normal randn",
    "or_cuda": "any",
    "pow_cuda": "pow",
    "prod_cuda": "prod",
    "reciprocal_cuda": "reciprocal",
    "remainder_cuda": "remainder",
    "roll_cuda": "roll",
    "round_cuda": "round",
    "rsqrt_cuda": "rsqrt",
    "sigmoid_cuda": "sigmoid",
    "sign_cuda": "sign",
    "silu_cuda": "silu",
    "sin_cuda": "sin",
    "sortKeyValueInplace": "sort",
    "sqrt_cuda": "sqrt",
    "std_cuda": "std var",
    "sum_cuda": "sum",
    "tanh_cuda": "tanh",
    "topk_out_cuda": "topk",
    "triu_tril_cuda_template": "tril triu",
    "trunc_cuda": "trunc",
    "ufunc_add_CUDA": "add sub",
    "unique": "_unique2",
    "upsample_nearest2d_out_frame": "upsample_nearest2d",
}
"""Kernels that are not there, by the operators that would launch them."""
_WORDS = {operator: kernel for kernel, names in _KERNELS.items() for operator in names.split()}


def refuse(call: OperatorCall) -> None:
    """Raise torch's error if a kernel was not compiled for the type.

    Raises:
        NotImplementedError: With torch's message.
    """
    dtype = call.tensors[0].dtype if call.tensors else call.kwargs.get("dtype")
    said = TINY.get(dtype) if dtype is not None else None
    if said is None:
        return
    library, _, name = call.func._schema.name.partition("::")
    whole = f"{name}.{call.func._schema.overload_name}"
    kernel = _WORDS.get(whole) or _WORDS.get(name) or _WORDS.get(name.removesuffix("_"))
    if library == "aten" and kernel is not None:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{said}'")
