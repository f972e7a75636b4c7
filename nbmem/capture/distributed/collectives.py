"""Observe tensors that FSDP, DTensor and ZeRO hold for collectives.

These are gathered parameters and the tensors that are reduced.

They exist only inside a forward or a backward. So they are read at that moment, where FSDP's own
methods are looked up (see capture/patches/method_patches.py), from the objects and frames that hold
them.

Known limit: a program may replace torch's own communication (`set_custom_reduce_scatter`). The
output of that is known only by its input.

What DTensor's collectives return is observed where torch is about to use it. A redistribution looks
up a class of torch's right after the collective, with the result among its variables. That lookup
is patched (method_patches.py explains how). A result that shares the input's storage was not
communicated: a shard of a replica is a view.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/tensor/_redistribute.py

Known limit: reductions of a loss over vocabulary shards, and the program's own calls of
`torch.distributed._functional_collectives`, are not observed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.distributed import fsdp, zero
from nbmem.capture.distributed.fsdp import CollectiveTensor
from nbmem.capture.distributed.parallel_wrappers import items_of
from nbmem.capture.interpreter.object_members import attributes_of, locals_of, namespace_of
from nbmem.capture.patches.method_patches import MethodPatch
from nbmem.capture.patches.name_patches import NamePatch
from nbmem.capture.tensors.modules import is_tensor
from nbmem.capture.tensors.tensor_storages import local_of
from nbmem.capture.tensors.tensors import address_of
from nbmem.core.runtime.entry_points import entry
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import ALL_GATHER, DTENSOR, ZERO_BUCKET

if TYPE_CHECKING:
    from nbmem.capture.patches.compilations import OnFault
    from nbmem.capture.patches.method_patches import Ended

    Reader = Callable[[Any, Mapping[str, Any]], Iterable[CollectiveTensor]]
    """Finds the held tensors, given the object whose method is called and the caller's
    variables."""
    Part = MethodPatch | NamePatch

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


def _slot(obj: Any, name: str) -> Any:
    """Read an attribute of a torch object from its slot or dictionary."""
    found: Any = namespace_of(type(obj)).get(name)
    if hasattr(type(found), "__get__"):
        return found.__get__(obj)
    return (attributes_of(obj) or {}).get(name)


_SECOND = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_BETWEEN = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
_FIRST = "torch.distributed.fsdp._runtime_utils"
_FLAT_PARAMETERS = "torch.distributed.fsdp._flat_param"
_ZERO = "deepspeed.runtime.zero.stage_1_and_2"
_MAKES_ROOM = ("DefaultAllocMixin", "ProcessGroupAllocMixin", "SymmMemAllocMixin")
_REDUCES = ("DefaultReduceScatter", "ProcessGroupAllocReduceScatter", "SymmMemReduceScatter")
_REDUCES_FLAT = ("reduce_scatter_single", "reduce_scatter_tensor")
"""Functions that FSDP1 calls: since torch 2.13, and before."""


class Collectives:
    """Patches of FSDP, DTensor and ZeRO that observe their collectives.

    Args:
        held: Called with the held tensors, if some may be new.
        on_fault: Records a note about a fault; nothing is reported after that.
    """

    def __init__(
        self, held: Callable[[Iterable[CollectiveTensor]], None], on_fault: OnFault
    ) -> None:
        self._held = held
        self.on_fault = on_fault
        self._left = {
            _SECOND: self._fsdp2_patches,
            _FIRST: self._fsdp1_patches,
            MODULE: self._dtensor_patches,
            _ZERO: self._zero_patches,
        }
        self._deaf = False

    def _none(self) -> list[Part]:
        return []

    @entry("what FSDP gathers and reduces", otherwise=_none)
    def parts(self) -> list[Part]:
        """Create patches for modules imported since the last call.

        Nothing is patched twice, and no module before its import.
        """
        there = [name for name in self._left if name in sys.modules]
        return [part for name in there for part in self._left.pop(name)()]

    def _fsdp2_patches(self) -> list[Part]:
        group = ((_SECOND, "FSDPParamGroup"),)
        room = tuple((_BETWEEN, name) for name in _MAKES_ROOM)
        reduce = tuple((_BETWEEN, name) for name in _REDUCES)
        code = getattr(vars(sys.modules[_BETWEEN]).get("foreach_reduce"), "__wrapped__", None)
        return [
            *self._methods(group, "unshard", after=fsdp.all_gather_buffer),
            *self._methods(group, "wait_for_unshard", after=fsdp.unsharded_parameters),
            *self._methods(group, "reshard", after=fsdp.post_forward_shards),
            *self._methods(group, "post_backward", after=fsdp.waiting_gradients),
            *self._methods(room, "allocate", before=fsdp.collective_inputs),
            *self._methods(
                reduce,
                "__call__",
                before=fsdp.reduce_scatter_buffers,
                by=getattr(code, "__code__", None),
            ),
        ]

    def _fsdp1_patches(self) -> list[Part]:
        handle = ((_FLAT_PARAMETERS, "FlatParamHandle"),)
        dist = vars(sys.modules[_FIRST]).get("dist")
        name = next((name for name in _REDUCES_FLAT if hasattr(dist, name)), None)
        parts = self._methods(handle, "unshard", after=fsdp.flat_gathered_buffers)
        if name is not None:
            where = sys.modules[_FIRST]
            parts.append(NamePatch(where, "dist", (name,), self._reduces_flat, self._fault))
        return parts

    def _dtensor_patches(self) -> list[Part]:
        where = sys.modules[MODULE]
        return [
            NamePatch(where, name, (wanted,), self._redistributes, self._fault)
            for name, wanted in LOOK_UPS
            if hasattr(vars(where).get(name), wanted)
        ]

    def _zero_patches(self) -> list[Part]:
        return self._methods(((_ZERO, "DeepSpeedZeroOptimizer"),), "average_tensor", before=_sends)

    def _methods(
        self,
        owners: tuple[tuple[str, str], ...],
        name: str,
        *,
        before: Reader | None = None,
        after: Reader | None = None,
        by: Any = None,
    ) -> list[Part]:
        """Create patches of a method for the classes that define it."""

        def begins(obj: Any, frame: FrameType) -> Ended | None:
            if before is not None:
                self._read(before, obj, locals_of(frame))
            return None if after is None else lambda: self._read(after, obj, {})

        classes = (vars(sys.modules[module]).get(owner) for module, owner in owners)
        return [
            MethodPatch(owner, name, begins, self._fault, by)
            for owner in classes
            if owner is not None and name in vars(owner)
        ]

    def _reduces_flat(self, frame: FrameType) -> None:
        self._read(fsdp.flat_reduce_scatter, None, locals_of(frame))

    def _redistributes(self, frame: FrameType) -> None:
        self._read(_made, None, locals_of(frame))

    def _read(self, reader: Reader, obj: Any, given: Mapping[str, Any]) -> None:
        if not self._deaf:
            self._held(reader(obj, given))

    def _fault(self, part: str, err: Exception) -> None:
        self._deaf = True
        self.on_fault(part, err)


# --- of DTensor's redistributions


def _made(_nothing: Any, given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield the tensor that a DTensor collective has produced."""
    found = collective_result(given)
    if found is not None:
        what = f"{DTENSOR} {found.kind}"
        yield CollectiveTensor(found.tensor, Category.COMMUNICATION, None, "", "", what)


# --- of DeepSpeed's ZeRO


def _sends(optimizer: Any, _given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield the buckets that ZeRO sends gradients from.

    ZeRO-1 and ZeRO-2 have them during a backward only.
    """
    for bucket in zero.buckets(optimizer):
        yield CollectiveTensor(bucket, Category.COMMUNICATION, None, "", "", ZERO_BUCKET)
