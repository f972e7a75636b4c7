"""Forked processes: a context does not come with a fork, and CUDA cannot be initialized anew there.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/cuda/__init__.py (_lazy_init)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from nbmem.virtual import current
from nbmem.virtual.tensors.calls import facts_of

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine
    from nbmem.virtual.tensors.calls import OperatorCall

BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method"
)
_INITIALIZATION = (
    "CUDA error: initialization error\n"
    "Search for `cudaErrorInitializationError' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
    "group__CUDART__TYPES.html for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
_machines: list[Machine] = []
"""The machine whose lock is held while this process is forked, so that nothing is half done."""


def refuse_in_fork(call: OperatorCall) -> None:
    """Raise what torch says of an operator on a card in a forked process.

    Raises:
        RuntimeError: A tensor is made or moved to the card, or a kernel would run.
    """
    device = call.argument("device")
    if device is not None and torch.device(device).type in {"cuda", "lazy"}:
        raise RuntimeError(BAD_FORK)
    if not facts_of(call.func).view:
        raise getattr(torch, "AcceleratorError", RuntimeError)(_INITIALIZATION)


def _before() -> None:
    machine = current.machine()
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
