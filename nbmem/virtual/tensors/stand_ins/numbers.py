"""Numbers for floats that are not computed, different by element.

Programs pass what they read to other libraries: a projection of 300 equal rows, or a deviation that
is zero, fails where a real run continues. An unknown float is a hash of its index in its storage.
An index has the same number in every storage of a kind, as comparisons of two copies expect. Only
results of random operators have a seed of their own, from the card's generator.

Numbers are between 1/16 and 1, where almost any operator could return them: probabilities, losses
and deviations are positive. Where an operator can return negative ones (value_signs.py), they are
normal, with mean 0 and deviation 1. A storage of one element holds 1.0, as a loss.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.devices import CPU
from nbmem.virtual.tensors.host.recipes import Recipe, View
from nbmem.virtual.tensors.shapes import dense

if TYPE_CHECKING:
    from nbmem.virtual.tensors.stand_ins.sign_and_seed import SignAndSeed
    from nbmem.virtual.tensors.storages import CardMemory

LEAST = 1 / 16
"""The smallest positive stand-in: its reciprocal and its logarithm are small, too."""
CHUNK = 1 << 20
"""Elements that are written at once: what it takes besides is 16 MiB."""
VARIED = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
}
_FACTORS = (-7046029254386353131, -4658895280553007687)
"""Of SplitMix64, as 64-bit integers with a sign."""
_BITS = 23


def stand_in(dtype: torch.dtype, block: CardMemory | None) -> Any:
    """Return a plausible value: finite, and not zero if it may divide."""
    if dtype is torch.bool:
        return bool(block is not None and (block.healthy or block.assumed))
    if dtype.is_complex or dtype.is_floating_point:
        return 1 + 0j if dtype.is_complex else 1.0
    zero = block is not None and (block.healthy is False or block.assumed is False)
    return 0 if zero else 1


def unknown(tensor: torch.Tensor, block: CardMemory | None, dtype: torch.dtype) -> torch.Tensor:
    """Make the CPU's copy of a tensor on a card whose values are unknown."""
    with _C._DisableTorchDispatch():
        copy = torch.empty_strided(tensor.size(), dense(tensor), dtype=dtype, device=CPU)
        if block is not None and block.most == 0:
            return copy.zero_()
        if (sign_and_seed := _sign_of(tensor, block)) is None:
            return copy.fill_(stand_in(tensor.dtype, block))
        return fill(copy, tensor.storage_offset(), tensor.stride(), *sign_and_seed)


def unread(view: View, tensor: torch.Tensor, block: CardMemory | None) -> Recipe | None:
    """Return a recipe of a large copy's stand-ins; None: it holds zeros.

    The copy is written at its first read.
    """
    sign_and_seed = _sign_of(tensor, block)
    if sign_and_seed is None or (block is not None and block.most == 0):
        return None
    args = (tensor.storage_offset(), tensor.stride(), *sign_and_seed)
    return Recipe(
        before=None, view=view, func=fill, in_place=True, args=args, kwargs={}, seed=None, count=1
    )


def _sign_of(tensor: torch.Tensor, block: CardMemory | None) -> SignAndSeed | None:
    """Return a tensor's sign and seed; None if all elements have one stand-in."""
    if block is None or tensor.dtype not in VARIED:
        return None
    single = tensor.untyped_storage().nbytes() <= tensor.element_size()
    return None if single else block.sign_and_seed


def fill(
    copy: torch.Tensor,
    start: int,
    strides: tuple[int, ...],
    seed: int,
    signed: bool,  # noqa: FBT001 - the parts of a SignAndSeed, as a recipe has them
) -> torch.Tensor:
    """Write the stand-in of each element, by its place in its storage.

    Args:
        copy: On the CPU.
        start: Where the tensor on the card begins in its storage, in elements.
        strides: Its strides, in elements.
        seed: As in SignAndSeed.
        signed: As in SignAndSeed.
    """
    if copy.numel() > CHUNK:
        rows = max(1, CHUNK * len(copy) // copy.numel())
        for first in range(0, len(copy), rows):
            part, at = copy[first : first + rows], start + first * strides[0]
            if len(part) == 1:
                fill(part[0], at, strides[1:], seed, signed)
            else:
                fill(part, at, strides, seed, signed)
        return copy
    places = torch.full((), start, device=CPU)
    for size, stride in zip(copy.size(), strides, strict=True):
        places = places.unsqueeze(-1) + torch.arange(size, device=CPU) * stride
    if not copy.dtype.is_complex:
        return copy.copy_(_numbers(places, seed, signed=signed))
    parts = (_numbers(places * 2 + part, seed, signed=signed) for part in (0, 1))
    return copy.copy_(torch.complex(*parts))


def _numbers(places: torch.Tensor, seed: int, *, signed: bool) -> torch.Tensor:
    """Hash places to numbers; the places are overwritten."""
    mixed = places.add_(seed).mul_(_FACTORS[0])
    mixed.bitwise_xor_(mixed >> 32).mul_(_FACTORS[1])
    bits = mixed.bitwise_right_shift_(64 - _BITS).bitwise_and_((1 << _BITS) - 1)
    share = bits.to(torch.float32).add_(0.5).mul_(2.0**-_BITS)
    if signed:
        return share.mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2))
    return share.mul_(1 - LEAST).add_(LEAST)
