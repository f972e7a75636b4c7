"""DistributedDataParallel and NCCL on a virtual card: one process, the memory of its rank.

torch's reducer is C++ that wants a CUDA device. This takes what it takes: the flat copies of
the broadcasts, one bucket for the first backward, and the buckets by size that replace it before
the second forward. Nothing is communicated.
https://github.com/pytorch/pytorch/blob/v2.11.0/torch/nn/parallel/distributed.py and
torch/csrc/distributed/c10d/reducer.cpp; shown by ddp_resnet50_b32_sgdm.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch
from nbmem.virtual.patches.processes import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbmem.virtual.hardware.machine import Machine

MIB = 1 << 20
BROADCAST = 250 * MIB
"""Bytes that one flat copy of a broadcast holds at most (broadcast_bucket_size)."""
FIRST_BUCKET = MIB
"""kDefaultFirstBucketBytes."""
BUCKET_MIB = 25
"""bucket_cap_mb."""
NCCL = frozenset({"nccl", "cuda:nccl", "cpu:gloo,cuda:nccl"})


class Buckets:
    """What the reducer of one model holds."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], cap: float | None, *, views: bool, unused: bool
    ) -> None:
        self._parameters = [weakref.ref(p) for p in parameters]
        self._device = parameters[0].device
        self._cap = int((BUCKET_MIB if cap is None else cap) * MIB)
        self._views = views
        self._ready: list[int] = []
        self._rebuilt = unused
        self._places: dict[int, tuple[int, int]] = {}
        self.flat: list[torch.Tensor] = []
        everything = list(range(len(parameters)))
        self._fill(self._by_size(everything[::-1]) if unused else [everything])

    def ready(self, number: int) -> None:
        """The gradient of a parameter is there."""
        if not self._rebuilt:
            self._ready.append(number)
        parameter = self._parameters[number]()
        if self._views and parameter is not None and number in self._places:
            bucket, start = self._places[number]
            view = self.flat[bucket][start : start + parameter.numel()]
            parameter.grad = view.view(parameter.size())

    def rebuild(self) -> None:
        """Replace the one bucket of the first pass, in the order in which gradients came."""
        if self._rebuilt or len(self._ready) < len(self._parameters):
            return
        self._rebuilt = True
        order = list(dict.fromkeys(self._ready))
        self._ready.clear()
        groups = self._by_size(order)
        # All ranks agree on the order: the indices, then how many are in each bucket.
        held = [_scratch(4 * count, self._device) for count in (len(order) + 1, len(groups))]
        held.clear()
        self.flat.clear()
        self._fill(groups)

    def _by_size(self, order: Iterable[int]) -> list[list[int]]:
        """compute_bucket_assignment_by_size: a bucket is closed once it has reached its limit."""
        groups: list[list[int]] = []
        open_: dict[torch.dtype, tuple[list[int], int]] = {}
        limits: dict[torch.dtype, int] = {}
        for number in order:
            parameter = self._parameters[number]()
            if parameter is None:
                continue
            group, size = open_.pop(parameter.dtype, ([], 0))
            group.append(number)
            size += parameter.numel() * parameter.element_size()
            if size >= limits.get(parameter.dtype, min(FIRST_BUCKET, self._cap)):
                groups.append(group)
                limits[parameter.dtype] = self._cap
            else:
                open_[parameter.dtype] = (group, size)
        return groups + [group for group, _ in open_.values()]

    def _fill(self, groups: list[list[int]]) -> None:
        for group in groups:
            total, dtype = 0, torch.float32
            for number in group:
                parameter = self._parameters[number]()
                if parameter is not None:
                    self._places[number] = (len(self.flat), total)
                    total += parameter.numel()
                    dtype = parameter.dtype
            self.flat.append(torch.empty(total, dtype=dtype, device=self._device))


def _scratch(nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def broadcast(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Flat copies by type, two of which are alive at a time (broadcast_coalesced)."""
    groups: dict[torch.dtype, list[int]] = {}
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        sizes = groups.setdefault(tensor.dtype, [0])
        if sizes[-1] and sizes[-1] + size > BROADCAST:
            sizes.append(0)
        sizes[-1] += size
    in_flight: list[torch.Tensor] = []
    for size in (size for sizes in groups.values() for size in sizes if size):
        in_flight = [*in_flight[-1:], _scratch(size, device)]


def ddp_patches(machine: Machine) -> list[Patch]:
    """DistributedDataParallel, and NCCL's process group."""
    if not torch.distributed.is_available():
        return []
    from torch.distributed.utils import _to_kwargs

    ddp = nn.parallel.DistributedDataParallel
    true_init, true_forward = ddp.__init__, ddp.forward

    def init(self: Any, module: nn.Module, *args: Any, **options: Any) -> None:
        if not any(is_virtual(p) for p in module.parameters()):
            true_init(self, module, *args, **options)
            return
        nn.Module.__init__(self)
        self.module = module
        self.device = next(p.device for p in module.parameters() if is_virtual(p))
        self.device_ids, self.output_device = [self.device.index], self.device.index
        self._card_moves = bool(options.get("device_ids") or next(iter(args), None))
        self.dim, self.device_type = 0, "cuda"
        self.is_multi_device_module = False
        self.broadcast_buffers = options.get("broadcast_buffers") is not False
        self.find_unused_parameters = bool(options.get("find_unused_parameters"))
        self.gradient_as_bucket_view = bool(options.get("gradient_as_bucket_view"))
        self.static_graph = bool(options.get("static_graph"))
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.process_group = options.get("process_group")
        self._delay_all_reduce_params = []
        machine.gpu(self.device).workspaces.nccl()
        trained = [p for p in module.parameters() if p.requires_grad]
        sizes = 8, 16 * sum(p.dim() for p in trained)
        shapes = [_scratch(size, self.device) for size in sizes]
        shapes.clear()
        broadcast([*module.parameters(), *module.buffers()], self.device)
        self._card_buckets = Buckets(
            trained,
            options.get("bucket_cap_mb"),
            views=self.gradient_as_bucket_view,
            unused=self.find_unused_parameters and not self.static_graph,
        )
        for number, parameter in enumerate(trained):
            parameter.register_post_accumulate_grad_hook(_hook(self, number))

    def forward(self: Any, *inputs: Any, **options: Any) -> Any:
        buckets = self.__dict__.get("_card_buckets")
        if buckets is None:
            return true_forward(self, *inputs, **options)
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            buckets.rebuild()
        if self.broadcast_buffers and self.require_forward_param_sync:
            broadcast(self.module.buffers(), self.device)
        if self._card_moves:
            (inputs,), (options,) = _to_kwargs(inputs, options, self.device, False)
        return self.module(*inputs, **options)

    return [Patch(ddp, "__init__", init), Patch(ddp, "forward", forward), *_group_patches()]


def _hook(model: Any, number: int) -> Any:
    held = weakref.ref(model)

    def hook(_parameter: torch.Tensor) -> None:
        owner = held()
        if owner is not None and owner.require_backward_grad_sync:
            owner._card_buckets.ready(number)

    return hook


def _group_patches() -> list[Patch]:
    """`init_process_group("nccl")` makes torch's group that communicates nothing."""
    from torch.distributed import distributed_c10d

    true_init = distributed_c10d.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
        if backend is None or backend in NCCL or not Ranks.alone:
            from torch.testing._internal.distributed import fake_pg

            names = ("rank", "world_size")
            known = {name: options[name] for name in names if options.get(name, -1) >= 0}
            known.setdefault("rank", 0)
            known.setdefault("world_size", 1)
            true_init("fake", store=fake_pg.FakeStore(), **known)
            return
        true_init(backend, *args, **options)

    targets = (torch.distributed, distributed_c10d)
    names = {"init_process_group": init_process_group, "is_nccl_available": lambda: True}
    return [Patch(target, name, value) for target in targets for name, value in names.items()]
