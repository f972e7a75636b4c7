"""Process groups of a virtual card, which communicate nothing.

They are torch's own FakeProcessGroup, under the name of NCCL. Each rank is a process that runs
alone and assumes that all others run as it does. An object that only another rank has, as one
that it broadcasts, is taken from this rank if the program has it here.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/distributed/c10d/FakeProcessGroup.hpp

DTensor's search for strided shards is made once for each call. torch 2.13 plans the sharding of
`torch._foreach_add(a, b)` for each element of the lists, and each time searches all of them for a
strided shard. An optimizer with 300 parameters then reads 90,000 specs for each of its operators,
and FSDP2 seldom has a strided one.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/tensor/_sharding_prop.py
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch

from nbmem.core.session.ranks import require_inside
from nbmem.virtual import current_machine, rank_messages
from nbmem.virtual.operators.communication.collectives import (
    completed_work,
    create_group,
    make_get_future,
)
from nbmem.virtual.patches.distributed.spawn import RankState
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.warnings import OWN_STATE

_NAME = "_propagate_use_strided_shard_flag"


def sharding_patches() -> list[Patch]:
    """Return a patch that searches for strided shards once per call.

    Empty where torch has no such search.
    """
    from torch.distributed.tensor import _sharding_prop
    from torch.distributed.tensor.placement_types import _StridedShard

    original = getattr(_sharding_prop, _NAME, None)
    if original is None:
        return []
    last: list[Any] = [None, False]

    def propagate(op_strategy: Any, op_schema: Any) -> None:
        if last[0] is not op_schema:
            placed = (place for spec in op_schema.args_spec for place in spec.placements)
            last[:] = op_schema, any(isinstance(place, _StridedShard) for place in placed)
        if last[1]:
            original(op_strategy, op_schema)

    return [Patch(_sharding_prop, _NAME, propagate)]


NCCL = frozenset({"nccl", "cuda:nccl", "cpu:gloo,cuda:nccl"})
"""Backends that a virtual card replaces; gloo's own processes work as they do."""


class _Options:
    """ProcessGroupNCCL.Options, with the attributes that programs set.

    A build of torch without NCCL does not have the class.
    """

    def __init__(self, is_high_priority_stream: bool = False) -> None:  # noqa: FBT001, FBT002
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace()
        self._timeout: Any = None


class _GroupStandIn(type):
    """Metaclass of a process group that makes groups without peers."""

    Options = _Options
    NCCL_CTA_POLICY_ZERO = 2

    def __call__(cls, _store: Any, rank: int, size: int, *_args: Any, **_options: Any) -> Any:
        return create_group(rank, size)

    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is _fake()


class ProcessGroupNCCL(metaclass=_GroupStandIn):
    """The class of process groups for the backend "nccl"."""


def _c10d() -> Any:
    from torch._C import _distributed_c10d

    return _distributed_c10d


def _fake() -> Any:
    return _c10d().FakeProcessGroup


def group_patches() -> list[Patch]:
    """Return patches of process groups and object collectives."""
    from torch.distributed import device_mesh, distributed_c10d

    nccl: dict[str, Any] = {
        "ProcessGroupNCCL": ProcessGroupNCCL,
        "is_nccl_available": lambda: True,
        "init_process_group": _init(distributed_c10d),
        "barrier": _barrier(distributed_c10d),
        "split_group": _split(distributed_c10d),
        **_objects(distributed_c10d),
    }
    asked = {
        "uid": 0,
        "_group_start": lambda _self: None,
        "_group_end": lambda _self: None,
        "_add_ephemeral_timeout": lambda _self, _timeout: None,
        "_set_default_timeout": lambda _self, _timeout: None,
        "_is_initialized": lambda _self: True,
        "comm_split_count": lambda _self: 0,
        "register_mem_pool": lambda _self, _pool: None,
        "deregister_mem_pool": lambda _self, _pool: None,
        "supports_splitting": property(lambda _self: True),
        "_set_sequence_number_for_group": lambda _self: None,
        "_get_sequence_number_for_group": lambda _self: 0,
        "perform_nocolor_split": lambda _self, _device: None,
        "_shutdown": lambda _self: None,  # torch 2.6 calls it, but does not have it
    }
    work_class = getattr(_c10d(), "FakeWork", _c10d().Work)  # torch 2.6 has the base class alone
    minutes = Patch(distributed_c10d, "default_pg_nccl_timeout", timedelta(minutes=10))
    return [
        minutes,
        *patches_of(torch.distributed, nccl),
        *patches_of(distributed_c10d, nccl),
        *patches_of(device_mesh, nccl, only_existing=True),  # It makes a group where there is none.
        Patch(distributed_c10d, "ProcessGroupGloo", _gloo(distributed_c10d.ProcessGroupGloo)),
        *patches_of(_fake(), asked),
        Patch(work_class, "get_future", make_get_future(work_class)),
    ]


def _gloo(original: Any) -> Any:
    """Return a class that makes Gloo's groups, or groups without peers."""

    class GlooOrFakeMeta(_GroupStandIn):
        """Metaclass that makes groups without peers if there are none."""

        def __call__(cls, *args: Any, **options: Any) -> Any:
            if RankState.apart:
                return super().__call__(*args, **options)
            return original(*args, **options)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original) or super().__instancecheck__(instance)

    return GlooOrFakeMeta("ProcessGroupGloo", (), {})


def _init(c10d: Any) -> Callable[..., None]:
    """Return init_process_group(), which makes groups without peers.

    Rank and size are what the program gives, else the environment's as torchrun sets it. Backends
    that no virtual card serves are left to torch, unless this process plays a rank.
    """
    original_init = c10d.init_process_group
    signature = inspect.signature(original_init)

    def init_process_group(*args: Any, **options: Any) -> None:
        asked = signature.bind(*args, **options).arguments
        backend = asked.get("backend")
        place = rank_messages.folder()
        played = place is not None or not RankState.alone
        if not (backend is None or str(backend).lower() in NCCL or played):
            original_init(*args, **options)
            return
        rank, size = (
            _argument_or_variable(asked.get(name), variable, without)
            for name, variable, without in (("rank", "RANK", 0), ("world_size", "WORLD_SIZE", 1))
        )
        require_inside(rank, size)
        asked.update(rank=rank, world_size=size, store=torch.distributed.HashStore())
        asked.pop("init_method", None)
        RankState.apart = True
        if place is not None:
            rank_messages.joined(place, rank).touch()
        original_init(**asked)
        RankState.patches.apply([*_lone_checkpoints(), *sharding_patches()])

    return init_process_group


def _lone_checkpoints() -> list[Patch]:
    """Return patches with which each rank plans checkpoints alone.

    The first rank's plan would not arrive. One rank's shards are no whole model, so torch must not
    validate that. Nor does it have all parts of an optimizer's state, which the first FSDP gathers.
    """
    from torch.distributed.checkpoint import default_planner, utils
    from torch.distributed.fsdp import _optim_utils

    wrapper: Any = utils._DistWrapper
    original, original_valid = wrapper.__init__, default_planner._validate_global_plan

    def valid(*plans: Any) -> Any:
        return True if type(original_valid(*plans)) is bool else []  # torch 2.13 returns its errors

    def init(self: Any, group: Any, _use_dist: bool, coordinator: int) -> None:  # noqa: FBT001
        original(self, group, False, coordinator)

    def own_states(
        _all_keys: Any, own_keys: dict[Any, Any], _info: Any, states: Any, *_rest: Any, **_more: Any
    ) -> dict[str, Any]:
        if (machine := current_machine.machine()) is not None:
            machine.current.note(OWN_STATE)
        return {key.unflat_param_names[0]: dict(states[own]) for key, own in own_keys.items()}

    return [
        Patch(_optim_utils, "_convert_state_with_orig_params", own_states),
        Patch(wrapper, "__init__", init),
        Patch(default_planner, "_validate_global_plan", valid),
    ]


def _barrier(c10d: Any) -> Any:
    """Return barrier(), which allocates two numbers for a moment.

    torch and NCCL each take a number to add up, and free it at once.
    """
    original = c10d.barrier

    def barrier(
        group: Any = None,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        device_ids: Any = None,
    ) -> Any:
        world = group or c10d._get_default_group()
        if not RankState.apart or torch.device("cuda") not in world._device_types:
            return original(group, async_op, device_ids)
        taken = [torch.empty(1, device="cuda") for _ in range(2)]
        taken.clear()
        return completed_work() if async_op else None

    return barrier


def _split(c10d: Any) -> Any:
    """Return split_group(), which makes new groups.

    A device mesh calls it where a group is bound to a card. NCCL can split a group; a group without
    peers cannot be split.
    """
    original = c10d.split_group

    def split_group(*args: Any, **options: Any) -> Any:
        if not RankState.apart:
            return original(*args, **options)
        asked = bound_arguments(original, args, options)
        parent = asked.get("parent_pg") or c10d._get_default_group()
        kept = {name: asked[name] for name in ("timeout", "group_desc") if asked.get(name)}
        found = None
        for inside in asked["split_ranks"]:
            ranks = [c10d.get_global_rank(parent, rank) for rank in sorted(inside)]
            group = c10d.new_group(ranks, **kept)
            found = group if c10d.get_rank() in ranks else found
        return found

    return split_group


def _argument_or_variable(value: int | None, variable: str, without: int) -> int:
    if value is not None and value >= 0:
        return int(value)
    return int(os.environ.get(variable) or without)


def _objects(c10d: Any) -> dict[str, Any]:
    """Return the collectives that exchange Python objects.

    If this rank has an object of its own, the object replaces the other rank's.
    """
    broadcast, scatter = c10d.broadcast_object_list, c10d.scatter_object_list

    def broadcast_object_list(object_list: list[Any], *args: Any, **options: Any) -> Any:
        if not RankState.apart:
            return broadcast(object_list, *args, **options)
        return broadcast(
            object_list, **_with_own_source(c10d, broadcast, object_list, args, options)
        )

    def scatter_object_list(*args: Any, **options: Any) -> Any:
        asked = bound_arguments(scatter, args, options)
        given = asked.get("scatter_object_input_list")
        if not RankState.apart:
            return scatter(*args, **options)
        # Without a list only the scattering rank has the objects; this rank's list stays unchanged.
        if given is not None and not c10d._rank_not_in_group(asked.get("group")):
            asked["scatter_object_output_list"][0] = given[c10d.get_rank(asked.get("group"))]
        return None

    original_send, original_receive = c10d.send_object_list, c10d.recv_object_list

    def send_object_list(object_list: list[Any], *args: Any, **options: Any) -> Any:
        if not RankState.apart:
            return original_send(object_list, *args, **options)
        asked = bound_arguments(original_send, (object_list, *args), options)
        rank_messages.send(c10d.get_rank(), _peer(c10d, asked, "dst"), object_list)
        return None

    def recv_object_list(object_list: list[Any], *args: Any, **options: Any) -> Any:
        if not RankState.apart:
            return original_receive(object_list, *args, **options)
        peer = _peer(c10d, bound_arguments(original_receive, (object_list, *args), options), "src")
        object_list[:] = rank_messages.receive(c10d.get_rank(), peer)
        return peer

    return {
        "broadcast_object_list": broadcast_object_list,
        "scatter_object_list": scatter_object_list,
        "send_object_list": send_object_list,
        "recv_object_list": recv_object_list,
    }


def _peer(c10d: Any, asked: dict[str, Any], which: str) -> int:
    """Return the global rank of a message's other end."""
    if asked.get(f"group_{which}") is not None:
        return int(c10d.get_global_rank(asked["group"], asked[f"group_{which}"]))
    return int(asked[which])


def bound_arguments(
    function: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by their names."""
    return dict(inspect.signature(function).bind(*args, **options).arguments)


def _with_own_source(
    c10d: Any, function: Any, first: list[Any], args: tuple[Any, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """Return a call's arguments with this rank as the source.

    The list of objects is left out.
    """
    asked = bound_arguments(function, (first, *args), options)
    asked.pop("object_list")
    asked.pop("group_src", None)
    return {**asked, "src": c10d.get_rank()}
