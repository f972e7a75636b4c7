"""Reading and writing by index, by mask, and along a dimension."""

from __future__ import annotations

import torch

from nbmem.virtual.operator_model import autograd_differences
from nbmem.virtual.operator_model.operator import Operator, by_parts
from nbmem.virtual.operator_model.value_checks import aten_type_name, in_cpp
from nbmem.virtual.operators.index import index_kernels, masks
from nbmem.virtual.tensors.operator_call import OperatorCall
from nbmem.virtual.tensors.shapes import Results, infer, spec_of
from nbmem.virtual.tensors.value_bounds import (
    as_before,
    bound_after_scatter,
    bound_after_write,
    count_after_scatter,
    count_after_write,
)
from nbmem.virtual.tensors.value_rules import ValueRule

aten = torch.ops.aten


def _check_index_add(call: OperatorCall) -> None:
    target, source = call.args[0], call.argument("source")
    if target.dtype is not source.dtype:
        raise RuntimeError(
            f"index_add_(): self ({aten_type_name(target)}) and source "
            f"({aten_type_name(source)}) must have the "
            "same scalar type"
        )


def _check_scatter(call: OperatorCall) -> None:
    mask = call.argument("mask")
    if mask.dtype is not torch.bool:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {in_cpp(mask)}"
        )


def _shape_masked_fill(call: OperatorCall) -> Results:
    """Return the result of masked_fill, also for masks of bytes.

    The card takes these with a warning. torch's rule takes only bools.
    """
    target, mask, *value = call.args
    bools = torch.empty(mask.size(), dtype=torch.bool, device="meta")
    return infer(OperatorCall(call.func, (target, bools, *value), call.kwargs))


def _shape_static(call: OperatorCall) -> Results:
    """Return as many indices as the program wants, stored transposed."""
    size = call.argument("size")
    spec = spec_of((size, call.args[0].dim()), torch.int64, 0, (1, max(1, size)))
    return Results(spec, (spec,))


_PUT = "aten/src/ATen/native/cuda/Indexing.cu: index_put_with_sort_kernel"
_PUT_SHOWN = "swin_t_b32_adamw, backward: relative positions"
_SCATTER = "aten/src/ATen/native/cuda/IndexKernel.cpp: masked_scatter_cuda__template"
_OF_TWO = (
    *("MaximumBackward0", "MinimumBackward0", "FmaxBackward0", "FminBackward0"),
    *("ClampBackward0", "ClampMinBackward1", "ClampMaxBackward1"),
)
"""Nodes whose formulas test for subclasses since torch 2.14; before, they fill in place."""
OPERATORS = (
    Operator(
        ("nonzero",),
        run=masks.nonzero,
        memory=index_kernels.nonzero,
        source="aten/src/ATen/native/cuda/Nonzero.cu: nonzero_cuda_out_impl",
        shown_by="none of the H100's runs has one; the kernel in torch's library has 32 registers",
    ),
    Operator(
        ("nonzero_static",),
        shape=_shape_static,
        memory=index_kernels.nonzero_static,
        source="aten/src/ATen/native/cuda/Nonzero.cu: nonzero_static_cuda_out_impl",
    ),
    Operator(("masked_select",), run=masks.masked_select, values=ValueRule(below=as_before)),
    Operator(("index_select", "gather", "take"), values=ValueRule(below=as_before)),
    Operator(
        ("index.Tensor",),
        run=masks.index,
        values=ValueRule(below=as_before),
        mixes_devices=True,
        memory=index_kernels.get,
        source="aten/src/ATen/native/TensorAdvancedIndexing.cpp: make_info, AdvancedIndex",
        shown_by="swin_t_b32_adamw, forward",
    ),
    Operator(
        ("index_put",),
        autograd=autograd_differences.fill_by_index,
        run=masks.index_put,
        mixes_devices=True,
        memory=index_kernels.put,
        source=_PUT,
        shown_by=_PUT_SHOWN,
    ),
    Operator(
        ("index_put_", "_index_put_impl_"),
        run=masks.index_put,
        mixes_devices=True,
        memory=index_kernels.put,
        values=ValueRule(most=count_after_write, below=bound_after_write("values")),
        source=_PUT,
        shown_by=_PUT_SHOWN,
    ),
    Operator(
        ("masked_scatter",),
        autograd=autograd_differences.fill_in_place(aten.masked_scatter_.default),
        refuse=_check_scatter,
        memory=index_kernels.masked_scatter,
        source=_SCATTER,
    ),
    Operator(
        ("masked_scatter_backward",),
        run=by_parts(masks.masked_scatter_backward),
        source="aten/src/ATen/native/TensorAdvancedIndexing.cpp: masked_scatter_backward_symint",
    ),
    Operator(("_unsafe_index.Tensor",), run=by_parts(aten.index.Tensor)),
    Operator(("_unsafe_index_put",), run=by_parts(aten.index_put.default)),
    Operator(
        ("_unsafe_masked_index",),
        run=by_parts(masks.unsafe_masked_index),
        source="aten/src/ATen/native/TensorAdvancedIndexing.cpp: _unsafe_masked_index",
    ),
    Operator(
        ("_unsafe_masked_index_put_accumulate",),
        run=masks.unsafe_masked_index_put,
        source="aten/src/ATen/native/TensorAdvancedIndexing.cpp: "
        "_unsafe_masked_index_put_accumulate",
    ),
    Operator(
        ("masked_scatter_",),
        refuse=_check_scatter,
        memory=index_kernels.masked_scatter,
        source=_SCATTER,
    ),
    Operator(
        (
            *("masked_fill.Scalar", "masked_fill.Tensor"),
            *("masked_fill_.Scalar", "masked_fill_.Tensor"),
        ),
        autograd=autograd_differences.overwrite_in_place(
            aten.masked_fill_.Scalar, ("Atan2Backward0",), _OF_TWO
        ),
        shape=_shape_masked_fill,
    ),
    Operator(
        ("unfold_backward",),
        memory=index_kernels.unfold_backward,
        source="aten/src/ATen/native/UnfoldBackward.h: _make_unfold_backward_iter_over_grad_in",
    ),
    Operator(
        ("scatter_reduce.two", "scatter_reduce_.two"),
        memory=index_kernels.scatter_mean,
        source="aten/src/ATen/native/TensorAdvancedIndexing.cpp: scatter_reduce_two",
    ),
    Operator(
        ("index_reduce", "index_reduce_"),
        memory=index_kernels.index_mean,
        source="aten/src/ATen/native/cuda/Indexing.cu: TORCH_IMPL_FUNC(index_reduce_cuda_out)",
    ),
    Operator(("put",), autograd=autograd_differences.fill_in_place(aten.put_.default)),
    Operator(("scatter.src",), autograd=autograd_differences.fill_in_place(aten.scatter_.src)),
    Operator(("scatter_.src",), values=ValueRule(below=bound_after_write("src"))),
    Operator(
        ("scatter.value", "scatter_.value"),
        values=ValueRule(most=count_after_scatter, below=bound_after_scatter),
    ),
    Operator(
        ("scatter_add",), autograd=autograd_differences.fill_in_place(aten.scatter_add_.default)
    ),
    Operator(
        ("index_add",),
        autograd=autograd_differences.fill_in_place(aten.index_add_.default),
        refuse=_check_index_add,
    ),
    Operator(("index_add_",), refuse=_check_index_add),
    Operator(
        ("index_fill.int_Tensor",),
        autograd=autograd_differences.fill_in_place(aten.index_fill_.int_Tensor),
    ),
)
