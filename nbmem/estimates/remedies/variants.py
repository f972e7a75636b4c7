"""Variants of a distributed program: its own wrappers, switched."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbmem.estimates.remedies.parallel import Parallel, ZeroOptimizer
from nbmem.estimates.remedies.sharding import Sharded
from nbmem.virtual.patches.patcher import Patch, Patches

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card

_DDP_NONE = "The program has no DistributedDataParallel."


class _Wrapping(Parallel):
    """A remedy that replaces the constructor of DistributedDataParallel."""

    not_applicable = _DDP_NONE

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()

    def prepare(self) -> None:
        """Patch the constructor; the program joins its world itself."""
        from torch.nn.parallel import DistributedDataParallel

        true = DistributedDataParallel.__init__

        def init(wrapper: Any, module: Any, *args: Any, **options: Any) -> None:
            self.wrap(true, wrapper, module, args, options)

        self._patches.apply([Patch(DistributedDataParallel, "__init__", init)])

    def finish(self) -> None:
        """Undo the patch."""
        self._patches.undo()

    def wrap(
        self, true: Any, wrapper: Any, module: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Run a variant of the wrapper's constructor."""
        raise NotImplementedError

    def before_optimizer(self, params: Any) -> Any:
        """Return the parameters unchanged: the wrapper is where it acts."""
        return params

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments unchanged."""
        del module
        return args, kwargs

    def put(self, edit: Edit, card: Card) -> bool:
        """Return False: the wrapper's place in the program is not read."""
        return False


class BucketViews(_Wrapping):
    """DDP with `gradient_as_bucket_view`: gradients lie in the buckets."""

    key = "ddp_views"
    title = "gradient_as_bucket_view"
    price = "none; gradients must not be detached in place"
    not_applicable = "The program has no DistributedDataParallel without it."

    def wrap(
        self, true: Any, wrapper: Any, module: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Wrap with `gradient_as_bucket_view=True`."""
        self.applied += not options.get("gradient_as_bucket_view")
        true(wrapper, module, *args, **{**options, "gradient_as_bucket_view": True})

    def code_of(self, card: Card) -> str:
        """Return the wrapping line with the switch."""
        return (
            f"{self.own.model} = DistributedDataParallel(\n"
            f"    {self.own.model}, device_ids=[local], gradient_as_bucket_view=True)"
        )


class WrappedZeroOptimizer(_Wrapping, ZeroOptimizer):
    """ZeRO-1 beside the program's own DistributedDataParallel."""

    key = "ddp_zero1"
    not_applicable = _DDP_NONE
    price = (
        "a part of the optimizer's state on each card; after the step each sends the weights of "
        "its part to all others"
    )

    def __init__(self) -> None:
        super().__init__()
        self._wrapped = False
        self._early = False

    def wrap(
        self, true: Any, wrapper: Any, module: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Wrap as the program does; refuse if an optimizer came first."""
        self._wrapped = True
        if self._early:
            self.refuse("The optimizer is made before the model is wrapped: make it afterwards.")
        true(wrapper, module, *args, **options)

    def replacement(self, module: Any) -> Any:
        """Return the module: the program wraps its model itself."""
        return module

    def made_optimizer(self, optimizer: Any) -> None:
        """Turn an optimizer of the wrapped model into a ZeRO optimizer."""
        self._early = self._early or not self._wrapped
        if self._wrapped and not self._making:
            super().made_optimizer(optimizer)
            self.applied += 1

    def code_of(self, card: Card) -> str:
        """Return the optimizer's import and line alone."""
        return f"from torch.distributed.optim import ZeroRedundancyOptimizer\n{self._line}"


class ShardedForDDP(_Wrapping, Sharded):
    """FSDP2 in the place of the program's DistributedDataParallel."""

    key = "ddp_zero3"
    title = "FSDP2 for DDP"
    not_applicable = _DDP_NONE

    def moving(self, module: Any) -> None:
        """Shard a model before it is moved, if the process group exists."""
        import torch

        if torch.distributed.is_initialized():
            super().moving(module)

    def wrap(
        self, true: Any, wrapper: Any, module: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Shard the module and make a wrapper that only calls it."""
        del true, args, options
        from torch import nn

        nn.Module.__init__(wrapper)
        wrapper.module = module
        wrapper.forward = module.__call__
        wrapper.no_sync = contextlib.nullcontext
        self._with_optimizers(module)

    def written(self, model: Any, blocks: Sequence[Any]) -> str:
        """Return the lines that shard a model in the wrapper's place."""
        return f"# in the place of DistributedDataParallel(...)\n{super().written(model, blocks)}"

    def code_of(self, card: Card) -> str:
        """Return the lines that shard; the program joins its world itself."""
        return f"{self.imports}\n{self.lines()}"


class _Reshard(Parallel):
    """FSDP2's reshard switch, set where the model is first called."""

    not_applicable = "The program has no fully_shard to which it would make a difference."

    def prepare(self) -> None:
        """Do nothing: the program joins its world itself."""

    def before_optimizer(self, params: Any) -> Any:
        """Return the parameters unchanged."""
        return params

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Set the switch of each FSDP unit at the model's first call."""
        from torch.distributed.fsdp import FSDPModule

        if id(module) not in self._done:
            self._done[id(module)] = module
            units = [m for m in module.modules() if isinstance(m, FSDPModule)]
            for unit in units:
                self.set_reshard(unit, first=unit is units[0], alone=len(units) == 1)
        return args, kwargs

    def set_reshard(self, unit: Any, *, first: bool, alone: bool) -> None:
        """Set one unit's switch if that changes anything."""
        raise NotImplementedError

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the line before the optimizer is made."""
        return edit.insert_before_optimizer(self.lines())

    def code_of(self, card: Card) -> str:
        """Return the line that sets the switch."""
        return self.lines()


class ReshardOff(_Reshard):
    """FSDP2 that keeps gathered weights until backward has used them."""

    key = "reshard_off"
    title = "reshard off (ZeRO-2)"
    price = "the weights are gathered once a step, and stay whole until backward has used them"

    def set_reshard(self, unit: Any, *, first: bool, alone: bool) -> None:
        """Turn resharding off where it is on."""
        del alone
        if _reshards(unit, first=first):
            unit.set_reshard_after_forward(False, recurse=False)
            self.applied += 1

    def lines(self) -> str:
        """Return the line for all units."""
        return f"{self.own.model}.set_reshard_after_forward(False)"


class ReshardOn(_Reshard):
    """FSDP2 that reshards after forward, except for the root.

    Backward begins with the root's weights.
    """

    key = "reshard_on"
    title = "reshard on (ZeRO-3)"
    price = "the weights are gathered twice a step, for forward and for backward"

    def set_reshard(self, unit: Any, *, first: bool, alone: bool) -> None:
        """Turn resharding on where it is off."""
        if (alone or not first) and not _reshards(unit, first=first):
            unit.set_reshard_after_forward(True, recurse=False)
            self.applied += 1

    def lines(self) -> str:
        """Return the lines for all units but the root."""
        return (
            "from torch.distributed.fsdp import FSDPModule\n"
            f"for unit in list({self.own.model}.modules())[1:]:\n"
            "    if isinstance(unit, FSDPModule):\n"
            "        unit.set_reshard_after_forward(True, recurse=False)"
        )


def _reshards(unit: Any, *, first: bool) -> bool:
    """Return whether a unit is resharded after forward.

    A unit without parameters of its own is not resharded.
    """
    state = unit._get_fsdp_state()  # noqa: SLF001 - the public methods only set it
    if first and getattr(state, "_auto_reshard_after_forward", False):
        return False  # torch decides at its first forward that the root is not
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # noqa: SLF001
    return any(getattr(g, "post_forward_mesh_info", None) is not None for g in groups if g)


VARIANTS: tuple[type[Parallel], ...] = (
    BucketViews,
    WrappedZeroOptimizer,
    ReshardOff,
    ReshardOn,
    ShardedForDDP,
)
"""In the order in which they are tried."""
