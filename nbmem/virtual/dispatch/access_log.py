"""Card memory that an operator reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch._prims_common import compute_required_storage_length

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.hardware.memory_history import in_engine
from nbmem.virtual.paging.accesses import AccessKind, AccessLog
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of

if TYPE_CHECKING:
    import torch

    from nbmem.virtual.hardware.block_uses import BlockUseLog
    from nbmem.virtual.tensors.storages import Storages

_INDEXING = frozenset(
    f"aten::{name}"
    for name in (
        "index.Tensor",
        "index_select",
        "gather",
        "embedding",
        "take",
        "masked_select",
        "diagonal_copy",
    )
)
"""They read as many elements of their first tensor as their result has."""


def record_access(storages: Storages, call: OperatorCall, touches: AccessLog) -> None:
    """Record the bytes that an operator read and wrote in its arguments.

    New results were recorded where they were allocated.
    """
    written = {id(tensor) for tensor in call.mutated()}
    for tensor, addr in _used_blocks(storages, call):
        first, count = _stretch(tensor)
        did = AccessKind.WRITTEN if id(tensor) in written else AccessKind.READ
        touches.note(did, addr, count, first)


def record_uses(storages: Storages, call: OperatorCall, answer: Any, log: BlockUseLog) -> None:
    """Record which blocks an operator used, and how much of each.

    A new result's allocation is an event of its own.

    Args:
        storages: The blocks of all tensors.
        call: The operator's call.
        answer: What it returned.
        log: The log of the card.
    """
    in_backward = in_engine()
    indexed = call.tensors[0] if call.func.name() in _INDEXING else None
    for tensor, addr in _used_blocks(storages, call):
        size = (answer if tensor is indexed else tensor).nbytes
        log.used(addr, size, in_backward=in_backward)


def _used_blocks(storages: Storages, call: OperatorCall) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield the arguments on the card, each with the address of its block.

    A view uses no memory.
    """
    facts = facts_of(call.func)
    if facts.view or facts.reshapes:
        return
    for tensor in call.tensors:
        block = storages.of(tensor) if is_virtual(tensor) else None
        if block is not None and block.addr:
            yield tensor, block.addr


def _stretch(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a tensor's first byte in its storage, and its span in bytes."""
    span = compute_required_storage_length(tensor.shape, tensor.stride(), 0)
    return tensor.storage_offset() * tensor.element_size(), span * tensor.element_size()
