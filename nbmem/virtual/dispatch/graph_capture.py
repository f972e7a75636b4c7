"""Checks of operators against captures and outputs of CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.storages import Storages


def check_captured_call(call: OperatorCall) -> None:
    """Check a call against the capture, and register its random draw.

    Raises:
        RuntimeError: The host would wait for what is only captured.
    """
    capturing, stream = call.gpu.capture, call.gpu.stream.handle
    facts = facts_of(call.func)
    if facts.waits:
        capturing.check_wait(stream)
    if facts.random:
        capturing.draw(stream, call.argument("generator"))


def refuse_overwritten(storages: Storages, call: OperatorCall) -> None:
    """Raise torch's error if a call uses an overwritten graph output.

    torch's graph trees determine which outputs those are (patches/compiled/graph_trees.py). C++
    raises their error where a kernel takes the address, so views raise nothing.

    Raises:
        RuntimeError: It does.
    """
    if facts_of(call.func).view:
        return
    for tensor in call.tensors:
        block = storages.of(tensor) if is_virtual(tensor) else None
        if block is not None and block.overwritten:
            raise RuntimeError(block.overwritten)
