"""Sign and seed of unknown floats, by the operator that makes them.

The rules are parts of the operators' records (`ValueRule.sign_rule`). numbers.py makes the
numbers from them at the first read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import _C

from nbmem.virtual.devices import CPU, cpp_device, is_virtual
from nbmem.virtual.tensors.stand_ins.numbers import VARIED, fill
from nbmem.virtual.tensors.stand_ins.sign_and_seed import POSITIVE, SIGNED, SignAndSeed

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.values import Values

    SignRule = Callable[[Values, OperatorCall], SignAndSeed]

SAMPLED = 64
"""Elements of the first row of a CPU tensor that are tested for negative numbers."""


def set_sign_and_seed(values: Values, tensor: torch.Tensor, new: SignAndSeed) -> None:
    """Set the sign and seed of a tensor on a card."""
    block = values.storages.of(tensor)
    if block is not None and block.sign_and_seed is not None:
        block.sign_and_seed = new


def sign_and_seed(values: Values, tensor: torch.Tensor) -> SignAndSeed:
    """Return a tensor's sign and seed; of a CPU tensor from a sample."""
    if is_virtual(tensor):
        block = values.storages.of(tensor)
        return POSITIVE if block is None or block.sign_and_seed is None else block.sign_and_seed
    if tensor.dtype not in VARIED or tensor.dtype.is_complex or tensor.numel() <= 1:
        return POSITIVE
    if cpp_device(tensor) != CPU or tensor.layout is not torch.strided:
        return POSITIVE
    kept = values.host.kept_of(tensor)
    if kept is not None:  # It has not been read: it is a copy from a card, or initial weights.
        if (recipe := kept.recipe) is None:
            return POSITIVE
        return SignAndSeed(*recipe.args[-2:]) if recipe.func is fill else SIGNED
    with _C._DisableTorchDispatch(), torch.no_grad():
        some = tensor[(0,) * (tensor.dim() - 1)][:SAMPLED]
        return SignAndSeed(0, signed=bool((some < 0).any()))


def positive(values: Values, call: OperatorCall) -> SignAndSeed:
    """Return the sign and seed of results without negative numbers."""
    del values, call
    return POSITIVE


def signed(values: Values, call: OperatorCall) -> SignAndSeed:
    """Return the sign and seed of results with negative numbers."""
    del values, call
    return SIGNED


def as_arguments(values: Values, call: OperatorCall) -> SignAndSeed:
    """Return signed numbers' sign if any argument is signed."""
    return SignAndSeed(
        0, signed=any(sign_and_seed(values, tensor).signed for tensor in call.tensors)
    )


def as_factors(values: Values, call: OperatorCall) -> SignAndSeed:
    """Return the sign of a product; a tensor times itself is positive."""
    left, right = call.args[:2]
    return POSITIVE if left is right else as_arguments(values, call)


def copied(values: Values, call: OperatorCall) -> SignAndSeed:
    """Return the last tensor's sign and seed, for copies in its order."""
    source = call.tensors[-1]
    known = sign_and_seed(values, source)
    start = source.storage_offset() if source.is_contiguous() else 0
    return SignAndSeed(known.seed + start, known.signed)


def drawn(call: OperatorCall) -> int:
    """Draw a seed from the generator of a call."""
    generator = call.argument("generator")
    if generator is None:
        generator = torch.cuda.default_generators[call.gpu.index]
    with _C._DisableTorchDispatch():
        number = torch.empty((), dtype=torch.int64, device=CPU).random_(generator=generator)
        return number.item() >> 1


def drawn_signed(values: Values, call: OperatorCall) -> SignAndSeed:
    """Return the sign of signed numbers and a random seed."""
    del values
    return SignAndSeed(drawn(call), signed=True)


def drawn_positive(values: Values, call: OperatorCall) -> SignAndSeed:
    """Return the sign of positive numbers and a random seed."""
    del values
    return SignAndSeed(drawn(call), signed=False)
