"""Operators of cuDNN that a program calls by name: they are the general ones for one library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.tensors.calls import Call, operator_of

if TYPE_CHECKING:
    from nbmem.virtual.operators.dispatch import CardMode

aten = torch.ops.aten


def convolution(mode: CardMode, call: Call) -> Any:
    """`cudnn_convolution` and its transpose: a convolution without bias."""
    padding = call.argument("padding")
    padded = call.argument("output_padding")
    inner = Call(
        aten.convolution.default,
        (
            *call.args[:2],
            None,
            call.argument("stride"),
            padding,
            call.argument("dilation"),
            padded is not None,
            padded or [0] * len(padding),
            call.argument("groups"),
        ),
        {},
    )
    inner.gpu = call.gpu
    return mode.execute(inner)


SPECIAL: dict[Any, Any] = {
    operator: convolution
    for name in ("cudnn_convolution", "cudnn_convolution_transpose")
    if (operator := operator_of(name)) is not None
}
