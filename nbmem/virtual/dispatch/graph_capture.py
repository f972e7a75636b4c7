"""Checks of operators that are called during a CUDA graph capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.tensors.operator_call import facts_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall


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
