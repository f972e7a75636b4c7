"""Find the tensors that DeepSpeed's ZeRO keeps beside a model's own.

They are read from ZeRO's own attributes.

ZeRO-3 leaves each parameter an empty placeholder, with its shard as `ds_tensor`. The placeholder is
filled while the parameter is gathered. Gradients' shards are one flat buffer of its optimizer.
Gradients are sent from buckets of `reduce_bucket_size` elements, however small the model is.
https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/zero/partition_parameters.py
and stage_1_and_2.py, stage3.py beside it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from nbmem.capture.interpreter.object_members import attributes_of, entries_of, is_a
from nbmem.capture.tensors.modules import is_tensor, named_parameters
from nbmem.capture.tensors.tensors import ObservedStorage, address_of, observe, requires_grad
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import GATHERED, ZERO_BUCKET

PACKAGE = "deepspeed"
FLAT_GRADIENTS = "grad_partitions_flat_buffer"


def zero_storages(module: Any) -> Iterator[ObservedStorage]:
    """Yield the tensors that ZeRO keeps beside a module's own.

    They are the shards of its parameters, the parts gathered now, the shards of its gradients,
    and the buckets from which gradients are sent. The names are relative to the module's own.
    """
    for path, parameter, shard in _cut(module):
        own = address_of(shard)
        yield from _observed(shard, Category.WEIGHTS, f".{path}")
        if address_of(parameter) not in (None, own):
            yield from _observed(parameter, Category.COMMUNICATION, f".{path} {GATHERED}")
    optimizer = (attributes_of(module) or {}).get("optimizer") if PACKAGE in sys.modules else None
    flat = (attributes_of(optimizer) or {}).get(FLAT_GRADIENTS)
    yield from _observed(flat, Category.GRADIENTS, f".optimizer.{FLAT_GRADIENTS}")
    for bucket in buckets(optimizer):
        yield from _observed(bucket, Category.COMMUNICATION, f": {ZERO_BUCKET}")


def bucket_sizes(module: Any) -> dict[str, int] | None:
    """Return the elements of a ZeRO bucket and of all gradients.

    None without ZeRO.
    """
    optimizer = (attributes_of(module) or {}).get("optimizer") if PACKAGE in sys.modules else None
    size = (attributes_of(optimizer) or {}).get("reduce_bucket_size")
    if type(size) is not int:
        return None
    learned = [p for _, p in named_parameters(module) if requires_grad(p)]
    return {"bucket": size, "gradients": sum(map(_elements, learned))}


def is_cut(module: Any) -> bool:
    """Return whether ZeRO-3 partitions any of a module's parameters."""
    return any(True for _ in _cut(module))


def buckets(optimizer: Any) -> Iterator[Any]:
    """Yield the buffers from which a ZeRO optimizer sends gradients.

    There are one or two for each dtype.
    """
    kept = (attributes_of(optimizer) or {}).get("ipg_buckets")
    for _, bucket in entries_of(kept) if is_a(type(kept), dict) else ():
        buffer = (attributes_of(bucket) or {}).get("buffer")
        yield from filter(is_tensor, buffer if type(buffer) is list else [buffer])


def _cut(module: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parameters that ZeRO-3 partitions: path, parameter, shard."""
    for path, parameter in named_parameters(module) if PACKAGE in sys.modules else ():
        shard = (attributes_of(parameter) or {}).get("ds_tensor")
        if is_tensor(shard):
            yield path, parameter, shard


def _elements(parameter: Any) -> int:
    """Return the number of elements of a whole parameter.

    ZeRO-3's placeholder may be empty; its `ds_numel` has the number.
    """
    whole = (attributes_of(parameter) or {}).get("ds_numel")
    return whole if type(whole) is int else int(parameter.numel())


def _observed(tensor: Any, category: Category, name: str) -> Iterator[ObservedStorage]:
    seen = observe(tensor, category, name) if is_tensor(tensor) else None
    if seen is not None:
        yield seen
