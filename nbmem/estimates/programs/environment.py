"""Save and restore torch's switches, random state and environment.

The working directory and sys.path belong to it, too. The state is captured in the caller and
restored before every run. So each run begins with the notebook's state, and a program that changes
a switch does not change it for the next run.

A default device reaches modules that are imported, too. Up to torch 2.9 `get_default_device()`
fails after `set_default_device(None)`, so restoring the device also removes the remains.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from nbmem.engine import process

_NAMED = {
    "backends.cuda.flash_sdp_enabled": "backends.cuda.enable_flash_sdp",
    "backends.cuda.mem_efficient_sdp_enabled": "backends.cuda.enable_mem_efficient_sdp",
    "backends.cuda.math_sdp_enabled": "backends.cuda.enable_math_sdp",
    "backends.cuda.cudnn_sdp_enabled": "backends.cuda.enable_cudnn_sdp",
    "get_default_dtype": "set_default_dtype",
    "get_deterministic_debug_mode": "set_deterministic_debug_mode",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "is_anomaly_enabled": "autograd.set_detect_anomaly",
    "is_autocast_cache_enabled": "set_autocast_cache_enabled",
    "is_grad_enabled": "set_grad_enabled",
}
SWITCHES: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    *((get, put, ()) for get, put in _NAMED.items()),
    *(("is_autocast_enabled", "set_autocast_enabled", (kind,)) for kind in ("cuda", "cpu")),
    *(("get_autocast_dtype", "set_autocast_dtype", (kind,)) for kind in ("cuda", "cpu")),
    ("backends.cudnn.enabled", None, ()),
    ("backends.cudnn.benchmark", None, ()),
    ("backends.cudnn.deterministic", None, ()),
    ("backends.cudnn.allow_tf32", None, ()),
    ("backends.cudnn.conv.fp32_precision", None, ()),
    ("backends.cuda.matmul.allow_tf32", None, ()),
    ("backends.cuda.matmul.fp32_precision", None, ()),
    ("backends.cuda.matmul.allow_fp16_reduced_precision_reduction", None, ()),
    ("backends.cuda.matmul.allow_bf16_reduced_precision_reduction", None, ()),
)
"""torch's switches: the getter, the setter (None: the attribute itself), first arguments."""


VISIBLE = "CUDA_VISIBLE_DEVICES"
NO_CARD = "-1"
"""Value that hides all cards from CUDA; on Windows an empty variable does not exist."""


class Plans:
    """Compiled plans that the runs of one question share.

    Attributes:
        folder: Their folder; None if no process would delete it afterwards.
    """

    folder: ClassVar[str | None] = None


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of a process that a program can observe.

    Attributes:
        path: sys.path.
        folder: The working directory.
        environment: os.environ.
        switches: torch's, by their index in SWITCHES; those that could be read.
        device: torch's default device; None for the CPU.
        random: State of the standard library's, numpy's and torch's generators; None where a
            library is not loaded.
    """

    path: list[str]
    folder: str
    environment: dict[str, str]
    switches: dict[int, Any]
    device: str | None
    random: tuple[Any, Any, Any]

    def put(self) -> None:
        """Restore the state; leave alone what already matches."""
        os.chdir(self.folder)
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        sys.path[:] = self.path
        import torch

        for number, value in self.switches.items():
            if _read(torch, number) != (value,):
                _set_switch(torch, number, value)
        if _device(torch) != self.device:
            _set_device(torch, self.device)
        own, arrays, tensors = self.random
        random.setstate(own)
        if arrays is not None:
            import numpy as np

            np.random.set_state(arrays)  # noqa: NPY002 - the one that programs share
        if tensors is not None:
            torch.set_rng_state(tensors)


def capture_state() -> ProcessState:
    """Capture the state of this process."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found = {} if torch is None else {n: _read(torch, n) for n in range(len(SWITCHES))}
    return ProcessState(
        path=list(sys.path),
        folder=os.getcwd(),  # noqa: PTH109 - as text
        environment=dict(os.environ),
        switches={number: value[0] for number, value in found.items() if value},
        device=None if torch is None else _device(torch),
        random=(
            random.getstate(),
            None if numpy is None else numpy.random.get_state(),
            None if torch is None else torch.get_rng_state(),
        ),
    )


_standing: list[ProcessState] = []


def set_initial_state(begin: ProcessState) -> None:
    """Set the state in which every later run in this process begins."""
    _standing[:] = [begin]


def restore_state() -> None:
    """Restore the state in which a run begins, and hide the real cards.

    No card is visible to CUDA or to subprocesses: a call that the virtual card does not intercept
    must fail instead of taking memory. os.environ retains the program's own `CUDA_VISIBLE_DEVICES`,
    since DeepSpeed and others parse it.
    """
    for begin in _standing:
        begin.put()
        if process.active():  # its cards are no real ones
            continue
        os.putenv(VISIBLE, NO_CARD)  # os.environ is what it reads


def _read(torch: Any, number: int) -> tuple[Any, ...]:
    """Return a switch's value in a tuple, empty if it cannot be read.

    This torch may not have it, or have two values that contradict each other.
    """
    get, put, arguments = SWITCHES[number]
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        found = _walk(torch, get)
        return (found if put is None else found(*arguments),)
    return ()


def _set_switch(torch: Any, number: int, value: Any) -> None:
    get, put, arguments = SWITCHES[number]
    if put is not None:
        _walk(torch, put)(*arguments, value)
        return
    owner, _, name = get.rpartition(".")
    setattr(_walk(torch, owner), name, value)


def _walk(torch: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        torch = getattr(torch, part)
    return torch


def _device(torch: Any) -> str | None:
    """Return torch's default device, or None.

    torch.get_default_device() would make a tensor on the device to find its ordinal.
    """
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)  # noqa: SLF001 - no other way
    return None if context is None else str(context.device)


def _set_device(torch: Any, device: str | None) -> None:
    torch.set_default_device(device)
    if device is None:
        # Up to torch 2.9 get_default_device() reads the device of the None that is left here.
        del torch._GLOBAL_DEVICE_CONTEXT.device_context  # noqa: SLF001 - no other way
