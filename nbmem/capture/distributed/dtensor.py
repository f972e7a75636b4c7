"""Detect what DTensor collectives return, where torch is about to use it.

A redistribution looks up a class of torch's right after the collective, with the result among its
variables. That lookup is patched (method_patches.py explains how). A result that shares the input's
storage was not communicated: a shard of a replica is a view.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/tensor/_redistribute.py

Known limit: reductions of a loss over vocabulary shards, and the program's own calls of
`torch.distributed._functional_collectives`, are not observed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.distributed.parallel_wrappers import items_of
from nbmem.capture.interpreter.object_members import attributes_of, namespace_of
from nbmem.capture.tensors.modules import is_tensor
from nbmem.capture.tensors.tensor_storages import local_of
from nbmem.capture.tensors.tensors import address_of
from nbmem.core.session.tensor_names import ALL_GATHER

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULE = "torch.distributed.tensor._redistribute"
LOOK_UPS = (("dtensor", "DTensor"), ("funcol", "AsyncCollectiveTensor"))
"""A name in that module, and the name that is looked up in it: after an explicit redistribution,
and after each collective that is waited for."""
_PLACEMENTS = "torch.distributed.tensor.placement_types"
_FUNCTIONAL = "torch.distributed._functional_collectives"


class CollectiveResult(NamedTuple):
    """A collective's result, held during one call, and the collective's kind."""

    tensor: Any
    kind: str


def collective_result(given: Mapping[str, Any]) -> CollectiveResult | None:
    """Return a redistribution's result from its variables, or None.

    None if nothing was communicated.
    """
    if "new_local_tensor" in given:  # one step of it
        result, source = given["new_local_tensor"], given.get("local_tensor")
        steps = [(given.get("current"), given.get("target"))]
    else:
        result = given.get("output")
        source = given.get("input", given.get("grad_output"))
        wanted = _slot(given.get("target_spec", given.get("spec")), "placements")
        before = _slot(_slot(source, "_spec"), "placements")
        steps = list(zip(items_of(before), items_of(wanted), strict=False))
    kinds = [kind for step in steps if (kind := _kind(*step)) is not None]
    result = _waited_for(result)
    if not kinds or not is_tensor(result) or not is_tensor(source):
        return None
    return (
        None
        if address_of(result) == address_of(local_of(source))
        else CollectiveResult(result, kinds[-1])
    )


def _kind(current: Any, target: Any) -> str | None:
    """Return the collective that leads from one placement to another.

    None if none is needed.
    """
    known = vars(sys.modules[_PLACEMENTS])
    replicate, partial = known["Replicate"], known["Partial"]
    if type(current) is type(target) and (type(current) is replicate or current == target):
        return None
    if type(current) is replicate or isinstance(target, partial):
        return None
    whole = type(target) is replicate
    if isinstance(current, partial):
        return "all-reduce" if whole else "reduce-scatter"
    return ALL_GATHER if whole else "all-to-all"


def _waited_for(tensor: Any) -> Any:
    """Return the tensor in an asynchronous result, or any other tensor itself."""
    asynchronous = vars(sys.modules[_FUNCTIONAL]).get("AsyncCollectiveTensor")
    return _slot(tensor, "elem") if type(tensor) is asynchronous else tensor


def _slot(thing: Any, name: str) -> Any:
    """Read an attribute of a torch object from its slot or dictionary."""
    found: Any = namespace_of(type(thing)).get(name)
    if hasattr(type(found), "__get__"):
        return found.__get__(thing)
    return (attributes_of(thing) or {}).get(name)
