"""Tensors and messages of one rank, as comparable bytes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from nbmem.virtual import rank_messages
from tests.ranks import programs

ALIKE = {"_allgather_base_": "allgather_", "_reduce_scatter_base_": "reduce_scatter_"}
"""FSDP1 gathers in other words on gloo."""


LEFT_OUT = (torch.ops.c10d.barrier.default,)
"""Its tensor is torch's own affair."""


class Collectives(TorchDispatchMode):
    """Record every collective of c10d with its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func.namespace == "c10d" and func not in LEFT_OUT and not _is_object(func, args):
            name = func._schema.name.removeprefix("c10d::")
            self.seen.append((ALIKE.get(name, name), _bytes(args)))
        return func(*args, **(kwargs or {}))


def _is_object(func: Any, args: Any) -> bool:
    """Return whether a message is a pickled object or its length."""
    letter = func in (torch.ops.c10d.send.default, torch.ops.c10d.recv_.default)
    return letter and not args[0][0].is_floating_point()


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value))
    return 0


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _held(tensors: dict[str, Any]) -> dict[str, list[Any]]:
    return {
        name: [list(_local(t).shape), str(t.dtype), _bytes(_local(t))]
        for name, t in sorted(tensors.items())
        if isinstance(t, torch.Tensor)
    }


def run(name: str, device: str) -> dict[str, Any]:
    """Run a program in this rank's group; return what it leaves."""
    with Collectives() as collectives:
        model, optimizer = getattr(programs, name)(device)
    parameters = dict(model.named_parameters())
    state = getattr(optimizer, "optim", optimizer).state.values()
    return {
        "parameters": _held(parameters),
        "gradients": _held({n: p.grad for n, p in parameters.items() if p.grad is not None}),
        "state": sorted(
            [key, *_held({key: value})[key]]
            for kept in state
            for key, value in kept.items()
            if isinstance(value, torch.Tensor)
        ),
        "collectives": sorted([*call, n] for call, n in Counter(collectives.seen).items()),
    }


def _let_fsdp1_use_the_cpu() -> None:
    """It refuses a machine without an accelerator, though all it calls is there for the CPU."""
    from torch.distributed.fsdp import _common_utils, _init_utils

    def handle(state: Any, *_args: Any) -> Any:
        state._device_handle = _common_utils._FSDPDeviceHandle.from_device(torch.device("cpu"))
        return state

    _init_utils._init_device_handle = handle
    from torch.distributed.fsdp import fully_sharded_data_parallel as fsdp

    fsdp._init_device_handle = handle


def main() -> None:
    """Write what a rank holds: PLACE RANK WORLD FOLDER PROGRAM...; PLACE is gloo or a card."""
    place, rank, world, folder, *names = sys.argv[1:]
    if place != "gloo":
        from nbmem import virtual

        virtual.activate(place)
    else:
        _let_fsdp1_use_the_cpu()
    found: dict[str, Any] = {}
    for name in names:
        dist.init_process_group(
            "gloo" if place == "gloo" else "nccl",
            rank=int(rank),
            world_size=int(world),
            init_method=f"file://{folder}/{name}.{place}",
        )
        try:
            found[name] = run(name, "cpu" if place == "gloo" else "cuda")
        except Exception as err:  # noqa: BLE001 - the comparison says which
            found[name] = {"error": f"{type(err).__name__}: {err}"[:300]}
        dist.destroy_process_group()
    if place != "gloo":
        rank_messages.ended(Path(folder), int(rank)).touch()
    Path(folder, f"{place}.{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
