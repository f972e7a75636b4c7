"""DistributedDataParallel on a virtual card: one rank's memory.

torch's reducer is C++ that needs a CUDA device. These patches take the memory that it takes: the
flat copies of the broadcasts, one bucket for the first backward, and the buckets by size that
replace it before the second forward. Nothing is communicated.

https://github.com/pytorch/pytorch/blob/v2.11.0/torch/nn/parallel/distributed.py and
torch/csrc/distributed/c10d/reducer.cpp; shown by ddp_resnet50_b32_sgdm.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.distributed.ddp_buckets import (
    ReducerBuckets,
    allocate_bytes,
    broadcast,
    limits_of,
)
from nbmem.virtual.patches.distributed.process_groups import group_patches
from nbmem.virtual.patches.patcher import Patch
from nbmem.virtual.tensors.leaf_streams import node_of

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine


def ddp_patches(machine: Machine) -> list[Patch]:
    """Return patches of DistributedDataParallel and NCCL's groups.

    Empty where torch.distributed is not available.
    """
    if not torch.distributed.is_available():
        return []
    ddp = nn.parallel.DistributedDataParallel
    original_init = ddp.__init__

    def init(self: Any, module: nn.Module, *args: Any, **options: Any) -> None:
        if not any(is_virtual(p) for p in module.parameters()):
            original_init(self, module, *args, **options)
            return
        _set_up(self, module, next(iter(args), None), options)
        machine.gpu(self.device).workspaces.nccl()
        trained = [p for p in module.parameters() if p.requires_grad]
        _synchronize(self, module, trained, init_sync=options.get("init_sync") is not False)
        self._card_buckets = ReducerBuckets(
            trained,
            options.get("bucket_cap_mb"),
            caps=options.get("bucket_cap_mb_list"),
            views=self.gradient_as_bucket_view,
            unused=self.find_unused_parameters and not self.static_graph,
            static=self.static_graph,
            group=self.process_group,
        )
        stream = machine.gpu(self.device).stream
        self._card_buckets.nodes = [node_of(parameter, stream) for parameter in trained]
        for number, parameter in enumerate(trained):
            parameter.register_post_accumulate_grad_hook(_hook(self, number))

    original_hook = ddp.register_comm_hook

    def register_comm_hook(self: Any, state: Any, hook: Any) -> None:
        buckets = self.__dict__.get("_card_buckets")
        if buckets is None:
            original_hook(self, state, hook)
        else:
            buckets.hook = (state, hook)

    return [
        Patch(ddp, "__init__", init),
        Patch(ddp, "_sync_final_model", _final_sync(ddp._sync_final_model)),
        Patch(ddp, "forward", _forward(ddp.forward)),
        Patch(ddp, "register_comm_hook", register_comm_hook),
        *group_patches(),
    ]


def _forward(original: Any) -> Any:
    """Return DDP's forward, with what the reducer allocates in it.

    It makes buckets anew, broadcasts buffers and moves inputs.
    """
    from torch._dynamo.decorators import skip
    from torch.distributed.algorithms import join
    from torch.distributed.utils import _to_kwargs

    def forward(self: Any, *inputs: Any, **options: Any) -> Any:
        buckets = self.__dict__.get("_card_buckets")
        if buckets is None:
            return original(self, *inputs, **options)
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            join.Join.notify_join_context(self)
            buckets.rebuild()
        if self.broadcast_buffers and self.require_forward_param_sync:
            broadcast(self.module.buffers(), self.device, self.process_group)
        if self._card_moves:
            (inputs,), (options,) = _to_kwargs(inputs, options, self.device, False)
        with self._inside_ddp_forward():  # the compiler reads the buckets to split at from it
            return self.module(*inputs, **options)

    return skip(forward)  # torch's own breaks a compiled graph, too, at its reducer's C++


def _final_sync(original: Any) -> Any:
    """Return DDP's final synchronization, which broadcasts one model.

    Join calls it when all ranks have used up their inputs.
    """

    def sync_final_model(self: Any, is_last_joiner: bool) -> None:  # noqa: FBT001 - torch's own
        if self.__dict__.get("_card_buckets") is None:
            original(self, is_last_joiner)
            return
        self._authoritative_rank = self._find_common_rank(self._distributed_rank, is_last_joiner)
        held = [*self.module.parameters(), *self.module.buffers()]
        broadcast(held, self.device, self.process_group)

    return sync_final_model


class _EmptyLoggingData:
    """The reducer logger's data about a run: empty."""

    strs_map: ClassVar[dict[str, str]] = {}
    ints_map: ClassVar[dict[str, int]] = {}


class _NullLogger:
    """A reducer logger that ignores every call."""

    @staticmethod
    def _get_ddp_logging_data() -> _EmptyLoggingData:
        """Return empty data for torch's wrapper.

        Lightning calls it where a run ends.
        """
        return _EmptyLoggingData()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_told, **_named: None


def _set_up(self: Any, module: nn.Module, device_ids: Any, options: dict[str, Any]) -> None:
    """Set the attributes that DDP's constructor sets."""
    from torch.distributed.algorithms.join import _JoinConfig

    nn.Module.__init__(self)
    self.module = module
    self.device = next(p.device for p in module.parameters() if is_virtual(p))
    self.device_ids, self.output_device = [self.device.index], self.device.index
    self._card_moves = bool(options.get("device_ids") or device_ids)
    self.dim, self.device_type = 0, "cuda"
    self.is_multi_device_module = False
    self.broadcast_buffers = options.get("broadcast_buffers") is not False
    self.find_unused_parameters = bool(options.get("find_unused_parameters"))
    self.gradient_as_bucket_view = bool(options.get("gradient_as_bucket_view"))
    self.static_graph = bool(options.get("static_graph"))
    self.require_backward_grad_sync = self.require_forward_param_sync = True
    mesh = options.get("device_mesh")
    self.process_group = mesh.get_group() if mesh is not None else options.get("process_group")
    if self.process_group is None:
        self.process_group = torch.distributed.distributed_c10d._get_default_group()
    self._delay_all_reduce_params = []
    named = options.get("bucket_cap_mb"), options.get("bucket_cap_mb_list")
    self.bucket_bytes_cap = max(limits_of(*named))
    self._join_config = _JoinConfig.construct_disabled_join_config()
    self.logger = _NullLogger()


def _synchronize(
    model: Any, module: nn.Module, trained: list[nn.Parameter], *, init_sync: bool
) -> None:
    """Compare the shapes of all ranks, then broadcast rank 0's values.

    The values are broadcast only with `init_sync`.
    """
    sizes = 8, 16 * sum(p.dim() for p in trained)
    shapes = [allocate_bytes(size, model.device) for size in sizes]
    world = torch.distributed.get_world_size(model.process_group)
    of_all = [torch.empty_like(shapes[0]) for _ in range(world)]
    torch.distributed.all_gather(of_all, shapes[0], group=model.process_group)
    torch.distributed.broadcast(shapes[1], 0, group=model.process_group)
    shapes.clear()
    of_all.clear()
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    named = [*module.named_parameters(), *module.named_buffers()]
    synchronized = [tensor for name, tensor in named if name not in ignored]
    if init_sync:
        broadcast(synchronized, model.device, model.process_group)


def _hook(model: Any, number: int) -> Any:
    held = weakref.ref(model)

    def hook(_parameter: torch.Tensor) -> None:
        owner = held()
        if owner is not None and owner.require_backward_grad_sync:
            buckets = owner._card_buckets
            if not buckets.in_pass:
                torch.autograd.Variable._execution_engine.queue_callback(buckets.finish)
            buckets.ready(number)

    return hook
