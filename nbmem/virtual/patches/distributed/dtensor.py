"""DTensor's search for strided shards, made once for each call.

torch 2.13 plans the sharding of `torch._foreach_add(a, b)` for each element of the lists, and each
time searches all of them for a strided shard. An optimizer with 300 parameters then reads 90,000
specs for each of its operators, and FSDP2 seldom has a strided one.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/tensor/_sharding_prop.py
"""

from __future__ import annotations

from typing import Any

from nbmem.virtual.patches.patcher import Patch

_NAME = "_propagate_use_strided_shard_flag"


def sharding_patches() -> list[Patch]:
    """Return a patch that searches for strided shards once per call.

    Empty where torch has no such search.
    """
    from torch.distributed.tensor import _sharding_prop
    from torch.distributed.tensor.placement_types import _StridedShard

    true = getattr(_sharding_prop, _NAME, None)
    if true is None:
        return []
    last: list[Any] = [None, False]

    def propagate(op_strategy: Any, op_schema: Any) -> None:
        if last[0] is not op_schema:
            placed = (place for spec in op_schema.args_spec for place in spec.placements)
            last[:] = op_schema, any(isinstance(place, _StridedShard) for place in placed)
        if last[1]:
            true(op_strategy, op_schema)

    return [Patch(_sharding_prop, _NAME, propagate)]
