"""Collectives that a rank called: kind, bytes and time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch

from nbmem.core.runtime.clock import CLOCK

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

MAX_CALLS = 200_000
"""The number of collectives in the log: those of some hundred steps of a large model."""
_KINDS = {
    "all-reduce": ("allreduce_", "allreduce_coalesced_"),
    "all-gather": (
        "_allgather_base_", "allgather_", "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
    ),
    "reduce-scatter": (
        "_reduce_scatter_base_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_",
    ),
    "all-to-all": ("alltoall_", "alltoall_base_"),
    "broadcast": ("broadcast_",),
    "send": ("send",),
    "receive": ("recv_", "recv_any_source_"),
}  # fmt: skip
_KIND_OF = {f"c10d::{name}": kind for kind, names in _KINDS.items() for name in names}


_FUNCTIONAL = {
    "all_reduce": ("all-reduce", False),
    "all_gather_into_tensor": ("all-gather", True),
    "reduce_scatter_tensor": ("reduce-scatter", False),
    "all_to_all_single": ("all-to-all", False),
    "broadcast": ("broadcast", False),
    "shard_dim_alltoall": ("all-to-all", False),
}
"""What DTensor calls, and whether the output is the larger side."""


class Collective(NamedTuple):
    """One collective call; `size` is in bytes, `t_ns` since the epoch."""

    t_ns: int
    kind: str
    size: int


calls: deque[Collective] = deque(maxlen=MAX_CALLS)
"""The latest collectives of this process, in their order."""


def record_collective(call: OperatorCall) -> None:
    """Record a collective by the bytes of its larger side.

    That is what is gathered, reduced or sent.
    """
    kind = _KIND_OF.get(call.func._schema.name)
    if kind is not None:
        calls.append(Collective(CLOCK.time_ns(), kind, max(map(_nbytes, call.args[:2]), default=0)))


def record_functional(call: OperatorCall) -> None:
    """Record a collective that returns a new tensor.

    DTensor and `torch.compile` call those.
    """
    name = call.func._schema.name.partition("::")[2].rstrip("_").removesuffix("_coalesced")
    if name not in _FUNCTIONAL:
        return
    kind, gathers = _FUNCTIONAL[name]
    size = _nbytes(call.args[0])
    if gathers:
        size *= next((n for n in call.args[1:] if isinstance(n, int)), 1)
    calls.append(Collective(CLOCK.time_ns(), kind, size))


def bytes_by_kind(first_ns: int, last_ns: int) -> Mapping[str, int]:
    """Return bytes by kind of the collectives called between two times."""
    found: Counter[str] = Counter()
    for one in calls:
        if first_ns <= one.t_ns <= last_ns:
            found[one.kind] += one.size
    return dict(found.most_common())


def _nbytes(value: object) -> int:
    """Return the bytes of a tensor, or of all tensors in a list."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_nbytes, value)) if isinstance(value, (list, tuple)) else 0
