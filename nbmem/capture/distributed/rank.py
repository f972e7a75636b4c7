"""Read this process's rank from the environment and torch.distributed.

The environment is torchrun's. No other rank is queried: this process already has all that is read
here.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from nbmem.capture.devices.host import total_bytes
from nbmem.capture.torch_cuda import device_count, initialized_torch, read_counters
from nbmem.core.session.ranks import Coordinate, Rank

_MESH, _UNNAMED = "mesh_", "default"
"""Prefix of a dimension's name, in the description of its process group; and the name of a
dimension that is the whole world.
https://github.com/pytorch/pytorch/blob/v2.11.0/torch/distributed/device_mesh.py"""


def rank_by_environment(started_ns: int) -> Rank | None:
    """Return the rank by the variables of torchrun; None without them.

    accelerate, DeepSpeed and Ray set the same ones.

    Args:
        started_ns: Start of its recording, nanoseconds since the epoch.
    """
    number, world = _number("RANK"), _number("WORLD_SIZE")
    if number is None or world is None or number >= world:
        return None
    return _rank(number, world, started_ns)


def rank_by_torch(started_ns: int) -> Rank | None:
    """Return the rank in the default process group, with its device mesh.

    None without a process group.

    Args:
        started_ns: Start of its recording, nanoseconds since the epoch.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    group = getattr(world, "default_pg", None)
    if group is None:
        return None
    groups = getattr(world, "pg_group_ranks", {})
    places = groups.get(group, {})
    own = int(group.rank())
    number = next((one for one, inside in places.items() if inside == own), own)
    size = len(places) or int(group.size())
    return _rank(number, size, started_ns, _mesh(groups, number))


def groups_now() -> int:
    """Return how many process groups exist in this process."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return len(getattr(getattr(c10d, "_world", None), "pg_group_ranks", ()))


def card_now() -> str | None:
    """Return an identifier of the GPU that this process uses most.

    It is the UUID, or otherwise the index. It identifies the card on its host.

    None before it holds memory on any. The current device is not used, because each thread has its
    own.
    """
    torch: Any = initialized_torch()
    read = ((index, read_counters(index)) for index in range(device_count()))
    held = [(c.reserved, -index) for index, c in read if c is not None and c.reserved]
    if not held:
        return None
    index = -max(held)[1]
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return str(index) if uuid is None else f"GPU-{uuid}"


def _rank(
    number: int, world: int, started_ns: int, mesh: Mapping[str, Coordinate] | None = None
) -> Rank:
    return Rank(
        number=number,
        world=world,
        local=_number("LOCAL_RANK"),
        host=socket.gethostname(),
        pid=os.getpid(),
        run=_run(),
        card=card_now(),
        mesh=mesh or {},
        host_bytes=_machine_bytes(),
        started_ns=started_ns,
    )


@cache
def _machine_bytes() -> int | None:
    try:
        return total_bytes()
    except Exception:  # noqa: BLE001 - a missing psutil, a hidden /proc: unknown, and no fault
        return None


def _mesh(groups: Mapping[Any, Mapping[int, int]], number: int) -> dict[str, Coordinate]:
    """Return this rank's coordinate in each named mesh dimension.

    A mesh of one dimension has no group of its own: it is the world, and is omitted.
    """
    mesh: dict[str, Coordinate] = {}
    for group, inside in groups.items():
        described = getattr(group, "group_desc", None)
        if type(described) is not str or not described.startswith(_MESH) or number not in inside:
            continue
        name = described.removeprefix(_MESH)
        if name != _UNNAMED:
            mesh[name] = Coordinate(inside[number], len(inside))
    return mesh


def _run() -> str | None:
    """Return an identifier of this start of the program, or None.

    If an elastic agent restarts it, the identifier changes.
    """
    variables = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    found = [os.environ[name] for name in variables if os.environ.get(name)]
    return " ".join(found) or None


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else None
