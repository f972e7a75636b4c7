"""Programs of several ranks, for gloo's processes and virtual cards.

Each takes the device and returns its model and its optimizer after two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)

if TYPE_CHECKING:
    Trained = tuple[nn.Module, torch.optim.Optimizer]

STEPS = 3
WIDTH = 60
"""No multiple of the world sizes 8 and 16: shards differ from rank to rank."""


class Block(nn.Module):
    """Attention's and the MLP's shapes, with a vector that no world size divides."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x)))) * self.scale.mean()


def blocks(device: str, count: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count))).to(device)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: str, width: int = WIDTH
) -> Trained:
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, width, device=device)).sum().backward()
        optimizer.step()
    return model, optimizer


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def ddp(device: str, **options: Any) -> Trained:
    model = nn.parallel.DistributedDataParallel(blocks(device), **options)
    return train(model, adam(model), device)


def ddp_views(device: str) -> Trained:
    return ddp(device, gradient_as_bucket_view=True, bucket_cap_mb=0.05)


def ddp_static(device: str) -> Trained:
    return ddp(device, static_graph=True)


def ddp_unused(device: str) -> Trained:
    return ddp(device, find_unused_parameters=True)


def ddp_accumulating(device: str) -> Trained:
    model = nn.parallel.DistributedDataParallel(blocks(device))
    with model.no_sync():
        model(torch.randn(4, WIDTH, device=device)).sum().backward()
    return train(model, adam(model), device)


def zero_redundancy(device: str) -> Trained:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(blocks(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    return train(model, optimizer, device)


def fsdp1(device: str, **options: Any) -> Trained:
    model = blocks(device)
    for name, block in model.named_children():
        setattr(model, name, FullyShardedDataParallel(block, **options))
    model = FullyShardedDataParallel(model, **options)
    return train(model, adam(model), device)


def fsdp1_originals(device: str) -> Trained:
    return fsdp1(device, use_orig_params=True)


def fsdp1_grad_op(device: str) -> Trained:
    return fsdp1(device, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)


def fsdp2(device: str, **options: Any) -> Trained:
    options.setdefault("mesh", init_device_mesh(device, (dist.get_world_size(),)))
    model = blocks(device)
    for block in model:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return train(model, adam(model), device)


def fsdp2_kept(device: str) -> Trained:
    return fsdp2(device, reshard_after_forward=False)


def fsdp2_half(device: str) -> Trained:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp2(device, mp_policy=policy)


def fsdp2_offload(device: str) -> Trained:
    return fsdp2(device, offload_policy=CPUOffloadPolicy(pin_memory=False))


def hsdp(device: str) -> Trained:
    world = dist.get_world_size()
    sizes = (2, world // 2) if world % 2 == 0 else (1, world)
    return fsdp2(device, mesh=init_device_mesh(device, sizes, mesh_dim_names=("dp", "shard")))


def fsdp2_meta(device: str) -> Trained:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    for layer in model:
        layer.reset_parameters()
    return train(model, adam(model), device)


def tensor_parallel(device: str, *, sequence: bool = False) -> Trained:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = blocks(device)
    plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
    for block in model:
        parallelize_module(block, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(12, WIDTH, device=device)).sum().backward()
        optimizer.step()
    return model, optimizer


def loss_parallel(device: str) -> Trained:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        parallelize_module,
    )
    from torch.distributed.tensor.parallel import loss_parallel as parallel

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(24, 48)).to(device)
    plan = {"0": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with parallel():
            logits = model(torch.randn(8, 24, device=device))
            labels = torch.zeros(8, dtype=torch.long, device=device)
            nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    return model, optimizer


def tp_and_fsdp(device: str) -> Trained:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    world = dist.get_world_size()
    sizes = (2, world // 2) if world % 2 == 0 else (world, 1)
    mesh = init_device_mesh(device, sizes, mesh_dim_names=("dp", "tp"))
    model = blocks(device)
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), device)


def pipeline(device: str, schedule: str = "ScheduleGPipe", each: int = 1) -> Trained:
    from torch.distributed import pipelining

    rank, world = dist.get_rank(), dist.get_world_size()
    made = []
    whole = blocks("cpu", world * each)
    for turn in range(each):
        number = turn * world + rank
        part = whole[number].to(device)
        made.append(pipelining.PipelineStage(part, number, world * each, torch.device(device)))
    kind = getattr(pipelining, schedule)
    runner = kind(
        made if each > 1 else made[0], n_microbatches=world, loss_fn=lambda out, _: out.sum()
    )
    model = nn.ModuleList([stage.submod for stage in made])
    optimizer = adam(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        given = (torch.randn(4 * world, WIDTH, device=device),) if rank == 0 else ()
        last = {"target": torch.zeros(4 * world, WIDTH, device=device)}
        runner.step(*given, **(last if rank == world - 1 else {}))
        optimizer.step()
    return model, optimizer


def one_forward_one_backward(device: str) -> Trained:
    return pipeline(device, "Schedule1F1B")


def interleaved(device: str) -> Trained:
    return pipeline(device, "ScheduleInterleaved1F1B", each=2)


def sequence_parallel(device: str) -> Trained:
    return tensor_parallel(device, sequence=True)


def collectives(device: str) -> Trained:
    """Each of c10d's own, in place of what a library would call."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, all_of_it = torch.ones(6, device=device), torch.ones(6 * world, device=device)
    dist.all_reduce(mine)
    dist.broadcast(mine, 0)
    dist.reduce(mine, 0)
    dist.all_gather_into_tensor(all_of_it, mine)
    dist.reduce_scatter_tensor(mine, all_of_it)
    dist.all_gather(list(all_of_it.chunk(world)), mine)
    dist.reduce_scatter(mine, list(all_of_it.chunk(world)))
    dist.all_to_all_single(torch.empty_like(all_of_it), all_of_it)
    dist.gather(mine, list(all_of_it.chunk(world)) if rank == 0 else None)
    dist.scatter(mine, list(all_of_it.chunk(world)) if rank == 0 else None)
    if rank == 0:
        dist.send(mine, 1)
    elif rank == 1:
        dist.recv(mine, 0)
    half = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(mine, group=half)
    dist.barrier()
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    model = nn.Linear(2, 2).to(device)
    return model, torch.optim.SGD(model.parameters())


PROGRAMS: tuple[Callable[[str], Trained], ...] = (
    ddp, ddp_views, ddp_static, ddp_unused, ddp_accumulating, zero_redundancy,
    fsdp1, fsdp1_originals, fsdp1_grad_op,
    fsdp2, fsdp2_kept, fsdp2_half, fsdp2_offload, fsdp2_meta, hsdp,
    tensor_parallel, sequence_parallel, loss_parallel, tp_and_fsdp,
    pipeline, one_forward_one_backward, interleaved, collectives,
)  # fmt: skip
