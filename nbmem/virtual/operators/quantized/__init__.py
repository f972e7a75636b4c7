"""Quantized tensors: CUDA's operators on their stored integers.

The operators are those that torch 2.13's build registers for the key QuantizedCUDA. The
rest is refused in torch's words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operators.quantized import constructors, integer_kernels, simulated
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of
from nbmem.virtual.tensors.quantized import is_quantized
from nbmem.virtual.tensors.unsupported import no_quantized_rule

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor

_HANDLERS = dict(integer_kernels.handlers())
OPERATORS = (*simulated.OPERATORS, *constructors.OPERATORS)


def has_quantized(call: OperatorCall) -> bool:
    """Return True if a tensor of the call is quantized and on a card."""
    return any(map(is_quantized, call.tensors))


def run_quantized(executor: Executor, call: OperatorCall) -> Any:
    """Run a call with a quantized tensor.

    Raises:
        NotImplementedError: In torch's words, where no card runs it.
        UsageError: A card runs it, the virtual one cannot.
    """
    name = call.func._schema.name
    handler = _HANDLERS.get(name.removeprefix("aten::"))
    if handler is not None:
        with executor:
            return handler(executor, call)
    facts = facts_of(call.func)
    if (facts.view or facts.reshapes) and call.func is not torch.ops.aten.resize_.default:
        return integer_kernels.view(call)
    if call.func._can_decompose():
        with executor:
            return call.func.decompose(*call.args, **call.kwargs)
    if not name.startswith("aten::"):
        raise no_quantized_rule(call.func)
    raise integer_kernels.not_implemented(call)
