"""Which tensors other threads may be working on, found without reading anything in a tensor."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from nbmem.probes.holders.objects import locals_of
from nbmem.probes.holders.places import barred, module_of, places, runs_users_code
from nbmem.probes.holders.reach import Reach
from nbmem.probes.holders.touch import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType


def of_other_threads(torch: Any, namespace: Mapping[str, Any], found: set[int]) -> Iterator[None]:
    """Add the ids of the tensors, storages and nodes that other threads' frames reach.

    A function also reaches its module's globals. Which of them it uses nobody can say, so a thread
    that runs the user's own code may be working on all that the notebook and its modules name.

    Args:
        torch: The user's torch.
        namespace: The notebook's names.
        found: Where they are added.
    """
    starts = _in_frames(namespace)
    yield
    reach = Reach(torch, barred(namespace), touch=NOTHING)
    yield from reach.steps(starts)
    found.update(reach.untouched)


def _in_frames(namespace: Mapping[str, Any]) -> list[Any]:
    frames = sys._current_frames()  # noqa: SLF001 - the documented way
    frames.pop(threading.get_ident(), None)
    found: list[Any] = []
    users = False
    for innermost in frames.values():
        frame: FrameType | None = innermost
        while frame is not None:
            if module_of(frame) != "nbmem":
                found.extend(locals_of(frame).values())
                users = users or runs_users_code(frame)
            frame = frame.f_back
    if users:
        found.extend(place.thing for place in places(namespace))
    return found
