"""Fork handlers: a forked child has no CUDA context and can make none.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/cuda/__init__.py (_lazy_init)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nbmem.virtual import current_machine

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine

BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method"
)
_machines: list[Machine] = []
"""The machine whose lock is held while this process is forked, so that nothing is half done."""


def _before() -> None:
    machine = current_machine.machine()
    if machine is not None:
        machine.lock.acquire()
        _machines.append(machine)


def _after() -> None:
    if _machines:
        _machines.pop().lock.release()


def _in_child() -> None:
    if _machines:
        _machines[-1].forked()
    _after()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
