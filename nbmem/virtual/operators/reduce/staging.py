"""Staging buffers and semaphores of reductions across thread blocks.

The launch geometry is that of setReduceConfig and its ReduceConfig:
https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/Reduce.cuh
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import HALVES, Launch, Step, drop, out, temporary

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card

MAX_THREADS = 512
WARP = 32
VECTOR = 4
MIN_PER_THREAD = 16
MAX_PER_THREAD = 256


@dataclass(frozen=True, slots=True)
class ReductionGeometry:
    """A reduction as the kernel sees it: merged dims, reduced ones first.

    Attributes:
        sizes: Elements of each dimension.
        strides: Strides of the input, in elements.
        reduced: How many of the dimensions are reduced.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    reduced: int

    @property
    def inputs(self) -> int:
        """Elements that go into one output."""
        return _product(self.sizes[: self.reduced])

    @property
    def outputs(self) -> int:
        """Elements of the result."""
        return _product(self.sizes[self.reduced :])


def _product(values: Sequence[int]) -> int:
    count = 1
    for value in values:
        count *= value
    return count


def geometry(tensor: torch.Tensor, dims: Sequence[int]) -> ReductionGeometry:
    """Order and merge the dimensions as TensorIterator does."""
    wanted = {d % tensor.dim() for d in dims} if tensor.dim() else set()
    rows = [
        (d in wanted, tensor.stride(d), size) for d, size in enumerate(tensor.size()) if size != 1
    ]
    merged: list[list[Any]] = []
    for is_reduced, stride, size in sorted(rows, key=lambda row: (not row[0], row[1])):
        last = merged[-1] if merged else None
        if last and last[0] == is_reduced and stride == last[1] * last[2]:
            last[2] *= size
        else:
            merged.append([is_reduced, stride, size])
    return ReductionGeometry(
        sizes=tuple(row[2] for row in merged),
        strides=tuple(row[1] for row in merged),
        reduced=sum(row[0] for row in merged),
    )


def staging(
    shape: ReductionGeometry, itemsize: int, card: Card, vector: int = VECTOR
) -> tuple[int, int]:
    """Return the bytes of the staging buffer and of the semaphores.

    Both are 0 where one block does an output.

    Args:
        shape: The reduction.
        itemsize: Bytes of an accumulator.
        card: Its multiprocessors decide how many blocks are worth it.
        vector: Elements of one vector load along the input.
    """
    inputs, outputs = shape.inputs, shape.outputs
    if not inputs or not outputs:
        return 0, 0
    kept = len(shape.sizes) - shape.reduced
    along = not kept or (shape.reduced > 0 and shape.strides[0] < shape.strides[shape.reduced])
    width, height = (inputs, outputs) if along else (outputs, inputs)
    fastest = (shape.strides[0] if along else shape.strides[shape.reduced]) if shape.sizes else 1
    wide = 1
    if fastest == 1:
        if along and width > 128 and len(shape.sizes) == 1:
            width //= vector
        elif not along:
            wide = _output_vector(shape)
            width //= wide
    block_x, block_y = _block(width, height, MAX_THREADS // wide)
    per_thread = inputs
    step_output = 1
    if along:
        per_thread = -(-inputs // block_x)
    else:
        step_output *= block_x
    step_input = block_x if along else 1
    split = per_thread >= min(block_y * 16, MAX_PER_THREAD)
    if split:
        step_input *= block_y
    else:
        step_output *= block_y
    per_thread = -(-inputs // step_input)
    grid = -(-(outputs // wide) // step_output)
    target = card.processors * (card.multiprocessor.threads // (block_x * block_y))
    if not split or per_thread < MAX_PER_THREAD or grid > target:
        return 0, 0
    blocks = max(
        min(-(-target // grid), -(-per_thread // MIN_PER_THREAD)), -(-per_thread // MAX_PER_THREAD)
    )
    if blocks <= 1:
        return 0, 0
    size = itemsize * outputs * blocks
    if not along:
        size *= block_x * wide
    return size, 4 * grid


def _output_vector(shape: ReductionGeometry) -> int:
    vector = VECTOR
    while vector > 1 and (
        shape.sizes[shape.reduced] % vector
        or any(s % vector for n, s in enumerate(shape.strides) if n != shape.reduced)
    ):
        vector //= 2
    return vector


def _block(width: int, height: int, limit: int) -> tuple[int, int]:
    wide = _power_below(width) if width < limit else limit
    high = _power_below(height) if height < limit else limit
    block_x = min(wide, WARP)
    block_y = min(high, limit // block_x)
    return min(wide, limit // block_y), block_y


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def accumulator_bytes(dtype: torch.dtype) -> int:
    """Return the bytes of an accumulator of that type."""
    if dtype in HALVES:
        return 4
    if not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool:
        return 8
    return max(1, dtype.itemsize)


def outs_and_staging(
    launch: Launch, tensor: torch.Tensor, dims: Sequence[int], itemsize: int
) -> Iterator[Step]:
    """Plan the results, then staging and semaphores."""
    for number in range(len(launch.outs)):
        yield out(number)
    yield from staging_steps(tensor, dims, itemsize, launch.card)


def staging_steps(
    tensor: torch.Tensor, dims: Sequence[int], itemsize: int, card: Card
) -> Iterator[Step]:
    """Plan staging and semaphores, which are freed after the kernel."""
    size, semaphores = staging(geometry(tensor, dims), itemsize, card)
    if size:
        yield temporary("staging", size)
        yield temporary("semaphores", semaphores)
        yield drop("semaphores")
        yield drop("staging")


def dims_of(launch: Launch, tensor: torch.Tensor) -> Sequence[int]:
    """Return the dimensions that a call reduces; all if it names none."""
    dims = launch["dim"]
    if dims is None or dims == []:
        return tuple(range(tensor.dim()))
    return (dims,) if isinstance(dims, int) else dims
