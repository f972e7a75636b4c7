"""A Llama with meta-device init, TP, checkpointing, FSDP2 and a pipeline.

    nbmem run tests/benchmarks/llama_over_ranks.py --gpu H200 --ranks 8 -- 8B --batch 2 --selective
    nbmem run tests/benchmarks/llama_over_ranks.py --gpu H200 --ranks 512 -- 405B --tp 8 --pp 8

Selective checkpointing keeps attention and every second matrix product, as torchtitan's does.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

if TYPE_CHECKING:
    Trained = tuple[list["Llama"], list[torch.optim.Optimizer]]

VOCABULARY = 128256


class Size(NamedTuple):
    """Size of a Llama 3.1: layers, width, heads and hidden width."""

    layers: int
    width: int
    heads: int
    hidden: int
    kv_heads: int = 8
    vocabulary: int = VOCABULARY


SIZES = {
    "tiny": Size(8, 256, 16, 768, vocabulary=1024),
    "8B": Size(32, 4096, 32, 14336),
    "70B": Size(80, 8192, 64, 28672),
    "405B": Size(126, 16384, 128, 53248),
}


class Attention(nn.Module):
    """Grouped-query attention, rotated as complex numbers."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.width // size.heads
        self.groups = size.heads // size.kv_heads
        self.wq = nn.Linear(size.width, size.width, bias=False)
        self.wk = nn.Linear(size.width, size.kv_heads * self.head, bias=False)
        self.wv = nn.Linear(size.width, size.kv_heads * self.head, bias=False)
        self.wo = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            made.view(batch, length, -1, self.head) for made in (self.wq(x), self.wk(x), self.wv(x))
        )
        q, k = (_turned(part, turns) for part in (q, k))
        k, v = (part.repeat_interleave(self.groups, dim=2) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(batch, length, -1))


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, : x.shape[1], None]).flatten(3).type_as(x)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.w1 = nn.Linear(size.width, size.hidden, bias=False)
        self.w2 = nn.Linear(size.hidden, size.width, bias=False)
        self.w3 = nn.Linear(size.width, size.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width)
        self.attention = Attention(size)
        self.ffn_norm = nn.RMSNorm(size.width)
        self.feed_forward = FeedForward(size)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), turns)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """Some layers of the model; missing ends are None."""

    def __init__(self, size: Size, layers: range, length: int) -> None:
        super().__init__()
        first, last = layers.start == 0, layers.stop == size.layers
        self.embedding = nn.Embedding(size.vocabulary, size.width) if first else None
        self.layers = nn.ModuleDict({str(number): Block(size) for number in layers})
        self.norm = nn.RMSNorm(size.width) if last else None
        self.output = nn.Linear(size.width, size.vocabulary, bias=False) if last else None
        pairs = size.width // size.heads // 2
        self.register_buffer("turns", torch.zeros(length, pairs, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            h = layer(h, self.turns)
        return h if self.output is None or self.norm is None else self.output(self.norm(h))


def split(model: Llama, mesh: DeviceMesh) -> None:
    """Apply tensor and sequence parallelism."""
    outer = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    there = {name: style for name, style in outer.items() if getattr(model, name) is not None}
    parallelize_module(model, mesh, there)
    columns, rows = ColwiseParallel, lambda: RowwiseParallel(output_layouts=Shard(1))
    for block in model.layers.values():
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                **{f"attention.w{letter}": columns() for letter in "qkv"},
                "attention.wo": rows(),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "feed_forward.w1": columns(),
                "feed_forward.w2": rows(),
                "feed_forward.w3": columns(),
            },
        )


_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def _selected() -> Any:
    seen: Counter[tuple[bool, Any]] = Counter()

    def policy(context: Any, function: Any, *_args: Any, **_options: Any) -> CheckpointPolicy:
        seen[context.is_recompute, function] += 1
        second = seen[context.is_recompute, function] % 2 == 0
        kept = function in _KEPT and not (function is torch.ops.aten.mm.default and second)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def prepare(model: Llama, mesh: DeviceMesh, *, selective: bool, pipeline: bool) -> None:
    """Apply every step to one stage's model and materialize it."""
    names = mesh.mesh_dim_names or ()
    if "tp" in names:
        split(model, mesh["tp"])
    for name, block in list(model.layers.items()):
        how: dict[str, Any] = {"context_fn": _selected} if selective else {}
        model.layers[name] = checkpoint_wrapper(block, preserve_rng_state=False, **how)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    *before, last = model.layers.values()
    for block in before:
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=not pipeline)
    fully_shard(last, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=not pipeline)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)


def _loss(predicted: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(predicted.flatten(0, 1).float(), wanted.flatten(0, 1))


def parts(layers: int, stages: int) -> list[range]:
    """Distribute layers over stages, the rest to the first ones."""
    least, more = divmod(layers, stages)
    ends = [least * n + min(n, more) for n in range(stages + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


def train(size: Size, asked: argparse.Namespace, world: int) -> Trained:
    """Build this rank's part and train it; return stages and optimizers."""
    data = world // asked.tp // asked.pp
    dims = [(asked.pp, "pp"), (data, "dp"), (asked.tp, "tp")]
    kept = [(count, name) for count, name in dims if count > 1 or name == "dp"]
    mesh = init_device_mesh(
        "cuda", [count for count, _ in kept], mesh_dim_names=[name for _, name in kept]
    )
    place = mesh["pp"].get_local_rank() if asked.pp > 1 else 0
    stages = asked.pp * (2 if asked.interleaved else 1)
    cuts = parts(size.layers, stages)
    mine = range(place, stages, asked.pp)
    with torch.device("meta"):
        models = [Llama(size, cuts[number], asked.length) for number in mine]
    for model in models:
        prepare(model, mesh, selective=asked.selective, pipeline=asked.pp > 1)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True) for model in models]
    tokens = torch.randint(size.vocabulary, (asked.batch, asked.length), device="cuda")
    step = _pipeline(models, mine, stages, mesh, asked) if asked.pp > 1 else None
    for _ in range(asked.steps):
        if step is None:
            _loss(models[0](tokens), tokens).backward()
        else:
            step(tokens)
        for model, optimizer in zip(models, optimizers, strict=True):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return models, optimizers


def _pipeline(
    models: list[Llama], mine: range, stages: int, mesh: DeviceMesh, asked: argparse.Namespace
) -> Any:
    group, card = mesh.get_group("pp"), torch.device("cuda")
    made = [
        PipelineStage(model, number, stages, card, group=group)
        for number, model in zip(mine, models, strict=True)
    ]
    if asked.interleaved:
        schedule: Any = ScheduleInterleaved1F1B(made, asked.batch, loss_fn=_loss)
    else:
        schedule = Schedule1F1B(made[0], asked.batch, loss_fn=_loss)

    def step(tokens: torch.Tensor) -> None:
        given = (tokens,) if mine.start == 0 else ()
        schedule.step(*given, target=tokens if stages - 1 in mine else None)

    return step


def main(words: Sequence[str] | None = None) -> None:
    """Train for two steps and print the card's peak."""
    asked = options(words)
    dist.init_process_group("nccl")
    train(SIZES[asked.size], asked, dist.get_world_size())
    held = torch.cuda.max_memory_reserved() / 2**30
    print(f"rank {dist.get_rank()}: {held:.2f} GiB reserved at most")


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options; None reads the command's own words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=SIZES)
    for name, value in (("tp", 1), ("pp", 1), ("batch", 1), ("length", 8192), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--selective", action="store_true")
    parser.add_argument("--interleaved", action="store_true")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
