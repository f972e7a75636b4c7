"""Bilinear layers: two matrix products for each output feature.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/Linear.cpp (_trilinear,
sumproduct_pair)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Executor, Operator

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def trilinear(executor: Executor, call: OperatorCall) -> Any:
    """Run `_trilinear`: a sum of three-way products, unrolled in one dim."""
    tensors, summed, along = list(call.args[:3]), call.args[6], call.argument("unroll_dim")
    expanded = [set(dims) for dims in call.args[3:6]]
    rank = tensors[0].dim() + len(expanded[0])
    with executor:
        for number, dims in enumerate(expanded):
            for dim in sorted(dims):
                tensors[number] = tensors[number].unsqueeze(dim)
        own = list(zip(tensors, expanded, strict=True))
        size = [next(t.size(d) for t, dims in own if d not in dims) for d in range(rank)]
        first = [d for d in summed if d in expanded[2] and d != along]
        second = [d for d in summed if d not in expanded[2] and d != along]
        result = tensors[0].new_zeros([1 if d in summed else size[d] for d in range(rank)])
        whole = all(t.numel() for t in tensors)
        for number in range(size[along] if whole else 0):
            one, two, three = (
                t if along in dims else t.narrow(along, number, 1) for t, dims in own
            )
            part = sum_of_products(one, two, first)
            part = sum_of_products(part, three, second)
            target = result if along in summed else result.narrow(along, number, 1)
            target.add_(part)
            del part, target
        for dim in sorted(summed, reverse=True):
            result.squeeze_(dim)
    return result


def sum_of_products(left: torch.Tensor, right: torch.Tensor, summed: Sequence[int]) -> torch.Tensor:
    """Return one bmm, or an elementwise product where nothing is summed."""
    if not summed:
        return left * right
    both: list[int] = []
    only_left: list[int] = []
    only_right: list[int] = []
    inner = 1
    for dim in range(left.dim()):
        here, there = left.size(dim) != 1, right.size(dim) != 1
        if dim in summed:
            if here and there:
                inner *= left.size(dim)
            elif here:
                left = left.sum(dim, keepdim=True)
            elif there:
                right = right.sum(dim, keepdim=True)
        else:
            (both if here and there else only_left if here else only_right).append(dim)
    batch, rows, columns = (
        [side.size(d) for d in dims]
        for side, dims in ((left, both), (left, only_left), (right, only_right))
    )
    order = [*both, *only_left, *summed, *only_right]
    left = left.permute(order).reshape(prod(batch), prod(rows), inner)
    right = right.permute([*both, *summed, *only_right, *only_left])
    right = right.reshape(prod(batch), inner, prod(columns))
    made = aten.bmm.default(left, right).view([*batch, *rows, *(1 for _ in summed), *columns])
    return made.permute([order.index(dim) for dim in range(len(order))])


OPERATORS = (
    Operator(
        ("_trilinear",),
        run=trilinear,
        source="aten/src/ATen/native/Linear.cpp: _trilinear, sumproduct_pair",
    ),
)
