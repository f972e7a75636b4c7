"""torch.multiprocessing.spawn with a process for each card: the first one's part runs here.

A virtual card is in one process alone, so a rank that is spawned would find none. All ranks of a
data-parallel program hold the same, so the first one's memory is what is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import multiprocessing

from nbmem.virtual.install.patches import Patch
from nbmem.virtual.notes import SPAWN

if TYPE_CHECKING:
    from nbmem.virtual.machine import Machine


class Ranks:
    """Whether this process plays the first of several."""

    alone = True


class _Done:
    """What spawn(join=False) returns: all is done already."""

    processes: tuple[Any, ...] = ()

    def join(self, *_args: Any, **_options: Any) -> bool:
        """Every process has ended."""
        return True


def process_patches(machine: Machine) -> list[Patch]:
    """The function that programs call."""
    true_spawn = multiprocessing.spawn

    def spawn(  # noqa: PLR0913 - torch's signature
        fn: Any,
        args: Any = (),
        nprocs: int = 1,
        join: bool = True,  # noqa: FBT001, FBT002
        daemon: bool = False,  # noqa: FBT001, FBT002
        start_method: str = "spawn",
    ) -> Any:
        if nprocs != len(machine.gpus) or not Ranks.alone:
            return true_spawn(fn, args, nprocs, join, daemon, start_method)
        if nprocs > 1:
            machine.current.note(SPAWN)
        Ranks.alone = nprocs == 1
        try:
            fn(0, *args)
        finally:
            Ranks.alone = True
        return None if join else _Done()

    return [Patch(multiprocessing, "spawn", spawn)]
