"""Checks for outputs of CUDA graphs that a later run overwrote.

Reading one is an error. torch's graph trees determine which outputs those are
(patches/compiled/graph_trees.py). C++ raises their error where a kernel takes the address, so
views raise nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.tensors.operator_call import facts_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.storages import Storages


def refuse_overwritten(storages: Storages, call: OperatorCall) -> None:
    """Raise torch's error if a call uses an overwritten graph output.

    Raises:
        RuntimeError: It does.
    """
    if facts_of(call.func).view:
        return
    for tensor in call.tensors:
        block = storages.of(tensor) if is_virtual(tensor) else None
        if block is not None and block.overwritten:
            raise RuntimeError(block.overwritten)
