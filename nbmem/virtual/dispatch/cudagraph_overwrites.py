"""Outputs of CUDA graphs that a later run has written over: reading one is an error.

Torch's graph trees say which (graph_trees.py); C++ raises their sentence where a kernel
asks for the address. Views ask for none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.tensors.operator_call import facts_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.storages import Storages


def refuse_overwritten(storages: Storages, call: OperatorCall) -> None:
    """Raise torch's sentence if the call reads or writes such a tensor.

    Raises:
        RuntimeError: It does.
    """
    if facts_of(call.func).view:
        return
    for tensor in call.tensors:
        block = storages.of(tensor) if is_virtual(tensor) else None
        if block is not None and block.overwritten:
            raise RuntimeError(block.overwritten)
