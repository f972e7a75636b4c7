"""Observe tensors that FSDP, DTensor and ZeRO hold for collectives.

These are gathered parameters and the tensors that are reduced.

They exist only inside a forward or a backward. So they are read at that moment, where FSDP's own
methods are looked up (see capture/patches/method_patches.py), from the objects and frames that hold
them.

Known limit: a program may replace torch's own communication (`set_custom_reduce_scatter`). The
output of that is known only by its input.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.capture.distributed import dtensor, fsdp, zero
from nbmem.capture.distributed.fsdp import CollectiveTensor
from nbmem.capture.interpreter.object_members import locals_of
from nbmem.capture.patches.method_patches import MethodPatch
from nbmem.capture.patches.name_patches import NamePatch
from nbmem.core.runtime.entry_points import entry
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import DTENSOR, ZERO_BUCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

    from nbmem.capture.patches.method_patches import Ended, Lost

    Reader = Callable[[Any, Mapping[str, Any]], Iterable[CollectiveTensor]]
    """Finds the held tensors, given the object whose method is called and the caller's
    variables."""
    Part = MethodPatch | NamePatch

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
        lost: Records a note about a fault; nothing is reported after that.
    """

    def __init__(self, held: Callable[[Iterable[CollectiveTensor]], None], lost: Lost) -> None:
        self._held = held
        self.lost = lost
        self._left = {
            _SECOND: self._fsdp2_patches,
            _FIRST: self._fsdp1_patches,
            dtensor.MODULE: self._dtensor_patches,
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
        where = sys.modules[dtensor.MODULE]
        return [
            NamePatch(where, name, (wanted,), self._redistributes, self._fault)
            for name, wanted in dtensor.LOOK_UPS
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

        def begins(thing: Any, frame: FrameType) -> Ended | None:
            if before is not None:
                self._read(before, thing, locals_of(frame))
            return None if after is None else lambda: self._read(after, thing, {})

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

    def _read(self, reader: Reader, thing: Any, given: Mapping[str, Any]) -> None:
        if not self._deaf:
            self._held(reader(thing, given))

    def _fault(self, part: str, err: Exception) -> None:
        self._deaf = True
        self.lost(part, err)


# --- of DTensor's redistributions


def _made(_nothing: Any, given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield the tensor that a DTensor collective has produced."""
    found = dtensor.collective_result(given)
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
