"""torch.multiprocessing.spawn with a process for each card.

The first rank's part runs in this process. A virtual card is in one process alone, so a rank that
is spawned would find none. All ranks of a data-parallel program hold the same, so the memory of the
first one is enough.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from multiprocessing import queues
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import multiprocessing

from nbmem.core.errors import UsageError
from nbmem.core.session.ranks import require_inside
from nbmem.virtual import rank_messages
from nbmem.virtual.devices import is_virtual
from nbmem.virtual.hardware.streams import ONE_PROCESS
from nbmem.virtual.patches.patcher import Patch, Patches
from nbmem.virtual.virtual_worlds import VirtualWorld, environment
from nbmem.virtual.warnings import SPAWN

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine


class RankState:
    """State of the rank that this process plays, if it plays one.

    Attributes:
        alone: It plays no rank.
        played: It plays a rank as torchrun would start it.
        before: The environment's variables that this changed, as they were.
        apart: Its process groups have no peers.
        patches: What is replaced in torch from its first process group on.
    """

    alone = True
    played = False
    before: ClassVar[dict[str, str | None]] = {}
    apart = False
    patches = Patches()


def enter_rank(place: VirtualWorld, rank: int) -> None:
    """Play a rank of a world in this process.

    The environment variables that torchrun sets are set here.

    Raises:
        UsageError: There is no such rank.
    """
    require_inside(rank, place.world)
    leave_world()
    told = environment(place, rank, "nbmem")
    RankState.before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    RankState.alone, RankState.played = False, True


def leave_world() -> None:
    """Stop playing a rank; nothing happens if none is played.

    Process groups are destroyed and the environment is restored.
    """
    if not RankState.played:
        return
    RankState.alone, RankState.played = True, False
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    _forget_in_accelerate()
    for name, value in RankState.before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _forget_in_accelerate() -> None:
    """Reset the state of Accelerate, which is one for all of a process.

    It would report that the process group still exists.
    """
    state = sys.modules.get("accelerate.state")
    for name in ("AcceleratorState", "PartialState", "GradientState"):
        forget = getattr(getattr(state, name, None), "_reset_state", None)
        if forget is not None:
            forget()


@contextlib.contextmanager
def playing(place: VirtualWorld | None, rank: int = 0) -> Iterator[None]:
    """Play a rank of a world during a `with` block; None: no rank.

    Shards are handed out from the first rank on, so none has more of them than that one.
    """
    if place is not None:
        enter_rank(place, rank)
    try:
        yield
    finally:
        leave_world()


class _FinishedSpawn:
    """The result of spawn(join=False): all processes have ended."""

    processes: tuple[Any, ...] = ()

    def join(self, *_args: Any, **_options: Any) -> bool:
        """Return True: every process has ended."""
        return True


def process_patches(machine: Machine) -> list[Patch]:
    """Return patches of spawn() and of sharing tensors."""
    original_spawn = multiprocessing.spawn

    def spawn(  # noqa: PLR0913 - torch's signature
        fn: Any,
        args: Any = (),
        nprocs: int = 1,
        join: bool = True,  # noqa: FBT001, FBT002
        daemon: bool = False,  # noqa: FBT001, FBT002
        start_method: str = "spawn",
    ) -> Any:
        if (
            rank_messages.folder() is not None or RankState.played
        ):  # It is a rank's process, and plays its part.
            fn(int(os.environ.get("LOCAL_RANK", "0")), *args)
            return None if join else _FinishedSpawn()
        if nprocs != len(machine.gpus) or not RankState.alone:
            return original_spawn(fn, args, nprocs, join, daemon, start_method)
        if nprocs > 1:
            machine.current.note(SPAWN)
        RankState.alone = nprocs == 1
        try:
            fn(0, *args)
        finally:
            RankState.alone = True
        return None if join else _FinishedSpawn()

    return [Patch(multiprocessing, "spawn", spawn), *_sharing_patches()]


def _sharing_patches() -> list[Patch]:
    """Return patches that refuse to share a card's memory.

    The error is raised where the program hands a tensor to another process.
    """
    original_put = queues.Queue.put

    def put(self: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
        # A queue pickles in its own thread, whose errors are not reported; the reader would wait.
        if _holds_card(obj):
            raise UsageError(ONE_PROCESS)
        original_put(self, obj, *args, **kwargs)

    def share(_self: Any, *_args: Any) -> Any:
        raise UsageError(ONE_PROCESS)

    return [
        Patch(queues.Queue, "put", put),
        Patch(torch.UntypedStorage, "_share_cuda_", share),
    ]


def _holds_card(value: Any, depth: int = 3) -> bool:
    """Return whether a value is or contains a virtual tensor.

    Lists, tuples and dictionaries are searched, `depth` layers deep.
    """
    if is_virtual(value):
        return True
    if depth and type(value) is dict:
        value = list(value.values())
    return (
        depth > 0
        and type(value) in (list, tuple)
        and any(_holds_card(item, depth - 1) for item in value)
    )
