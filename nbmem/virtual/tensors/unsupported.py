"""Errors for tensors and operators that a virtual card does not support."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError

if TYPE_CHECKING:
    import torch


OTHER_ENGINE = (
    " The engine torch runs it as torch does, on Linux with a CUDA build: `nbmem run --engine "
    "torch`, or a kernel of `nbmem kernel install --engine torch`."
)
"""Said behind each refusal. The rules here grow where a user's program needs it, and no further."""


def no_such_tensors(which: str) -> UsageError:
    """Build the error for tensors that a virtual card does not support."""
    return UsageError(
        f"The virtual GPU has no tensors {which}: it has dense, sparse and quantized ones, but no "
        "nested ones of the strided layout, and no quantized ones without a scale or of less than "
        "a byte. Use dense ones here (padding, layout=torch.jagged), or the CPU." + OTHER_ENGINE
    )


def no_sparse_rule(func: Any, layout: torch.layout) -> UsageError:
    """Build the error for a sparse operator that is supported only on a card."""
    return UsageError(
        f"The virtual GPU cannot run {func} on a tensor of the layout {layout}, though a card can: "
        "its products, sums, elementwise operators and conversions are there. Use to_dense() here, "
        "or run this part on the CPU." + OTHER_ENGINE
    )


def no_quantized_rule(func: Any) -> UsageError:
    """Build the error for another library's operator on quantized tensors."""
    return UsageError(
        f"The virtual GPU cannot run {func} on quantized tensors. Use dequantize() here, or run "
        "this part on the CPU." + OTHER_ENGINE
    )


def no_shape_rule(func: Any) -> UsageError:
    """Build the error for an operator without a shape rule."""
    if "nested" in func._schema.name:
        return no_such_tensors(f"as {func} makes them")
    return UsageError(
        f"The virtual GPU cannot run {func}: torch has no shape rule (meta kernel) for it. "
        "Register one with torch.library.register_fake, or run this part on the CPU." + OTHER_ENGINE
    )
